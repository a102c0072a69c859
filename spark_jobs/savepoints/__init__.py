"""Savepoints written by Spark: bootstrapped from DataFrames, or derived from another savepoint (`weir.SavepointWriter`)."""
