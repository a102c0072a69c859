"""Makes the data source `weir-output` known to Spark, which looks for `DefaultSource` in each package `pyspark_*`."""

from spark_jobs.output_source import OutputSource

DefaultSource = OutputSource
