"""Savepoints that Spark writes: from DataFrames, or derived from another savepoint (`weir.SavepointWriter`)."""
