"""Input of the example pipelines, and the DuckDB queries that check their output."""
