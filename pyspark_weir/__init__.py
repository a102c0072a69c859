"""The package in which Spark finds the data source `weir-state`: each package `pyspark_*` has a `DefaultSource`."""

from spark_jobs.state.source import StateSource

DefaultSource = StateSource
