"""Parts that make a poll cheap: the revision of a page, shared rows, and live blocks."""
