"""Spark finds the data source `weir-output` here: it takes one `DefaultSource` from each package `pyspark_*`."""

from spark_jobs.output_source import OutputSource

DefaultSource = OutputSource
