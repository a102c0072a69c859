"""Sources and sinks, one technology per file, on top of the file formats."""
