"""Savepoints written by Spark: bootstrapped from DataFrames, or made of another savepoint (`weir.SavepointWriter`)."""
