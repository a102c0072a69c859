"""Statistics, comparison, state, evidence and retention of checkpoints."""
