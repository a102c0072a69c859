"""The cost of checkpoints by their interval, aligned and stop-the-world."""
