"""Joins of two streams in event time: rows are kept per key until the watermark shows that no match can follow."""
