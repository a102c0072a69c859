"""Ports made real, one technology per module, and the in-memory twin of every port."""
