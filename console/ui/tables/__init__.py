"""The tables of the pages, each a declaration of its columns."""
