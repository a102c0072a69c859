"""A subtask without I/O: between its machine in `core` and its operator."""
