"""Makes the data source `weir-state` known to Spark, which looks for `DefaultSource` in each package `pyspark_*`."""

from spark_jobs.state.source import StateSource

DefaultSource = StateSource
