"""State of a gigabyte: its checkpoints, and reading it in Spark."""
