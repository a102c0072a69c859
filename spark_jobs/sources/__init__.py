"""Sources whose rows come from Spark: `weir.from_spark` and `weir.from_spark_stream`.

    flow.source("weather", from_spark(lambda spark: spark.read.parquet("/data/weather")))
    flow.source("orders", from_spark_stream(lambda spark: spark.readStream.schema("id LONG").json("/data/orders")))

table    `from_spark`: a DataFrame as a bounded source
splits   the folder of splits through which its rows travel
reader   reads these splits in a slot
frames   the DataFrame of a table, with the columns that it has and those that the source gives
digest   tells whether two computations of a split gave the same rows
stream   `from_spark_stream`: a streaming DataFrame as an unbounded source, read by `runtime.connectors.sources.epochs`
columns  what an author's function returned, checked, and its columns

Such a source is written without a folder. `Dataflow.source` binds it to a folder of the run (`ports.BoundByUid`).
A standing PySpark stage writes there, slots read there. In BATCH there is no such folder: the DataFrame goes to the
plan.
"""
