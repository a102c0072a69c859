"""Lists of rows: filters from the address, and the rows of a page."""
