"""State files: segments, the log of segments of a state, and their compaction."""
