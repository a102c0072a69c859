"""Savepoints written by Spark: bootstrapped from DataFrames, or made of another savepoint."""

from spark_jobs.savepoints.writer import SavepointWriter, WrittenSavepoint

__all__ = ["SavepointWriter", "WrittenSavepoint"]
