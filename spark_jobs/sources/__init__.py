"""Sources whose rows come from Spark; an author imports them from here.

    flow.source("weather", from_spark(lambda spark: spark.read.parquet("/data/weather")))

table    `from_spark`: a DataFrame as a bounded source
splits   the folder of splits through which its rows travel
reader   reads these splits in a slot
frames   what the author's function returned, checked, and its columns
digest   tells whether two computations of a split gave the same rows

Such a source is written without a folder. `Pipeline.dataflow` binds it to a folder of the run (`ports.ReadsRunInput`).
A PySpark stage writes there, slots read there. In BATCH there is no such folder: the DataFrame goes to the plan.
"""

from spark_jobs.sources.table import SparkTable, from_spark

__all__ = ["SparkTable", "from_spark"]
