"""The job master: attempts, their slots, checkpoints made durable, and restores."""
