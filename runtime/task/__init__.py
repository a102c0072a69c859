"""The task layer: connects the machine of a subtask (`core`) with its operator, without I/O."""
