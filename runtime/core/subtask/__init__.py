"""The behaviour of a subtask: alignment, watermarks, credits, loops, polling, snapshots, end of input."""
