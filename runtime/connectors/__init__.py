"""Sources and sinks, one technology per file, over the formats of files."""
