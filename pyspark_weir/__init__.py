"""Spark finds the data source `weir-state` here: it looks for packages called `pyspark_*` with a `DefaultSource`."""

from spark_jobs.state_source import StateSource

DefaultSource = StateSource
