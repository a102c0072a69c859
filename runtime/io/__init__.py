"""Implementations of the ports, one technology per module, and an in-memory counterpart of each."""
