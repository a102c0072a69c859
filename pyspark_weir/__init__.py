"""Spark finds the data source `weir-state` here: it takes one `DefaultSource` from each package `pyspark_*`."""

from spark_jobs.state_source import StateSource

DefaultSource = StateSource
