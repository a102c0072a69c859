"""The package in which Spark finds the data source `weir-output`: each package `pyspark_*` has a `DefaultSource`."""

from spark_jobs.output_source import OutputSource

DefaultSource = OutputSource
