"""Sources whose rows come from Spark: `weir.from_spark` and `weir.from_spark_stream`.

    flow.source("weather", from_spark(lambda spark: spark.read.parquet("/data/weather")))
    flow.source("orders", from_spark_stream(lambda spark: spark.readStream.schema("id LONG").json("/data/orders")))

table    `from_spark`: a DataFrame as a bounded source
splits   the folder of splits through which its rows travel
reader   reads the splits in a slot
frames   the DataFrame of a table, and the mapping of its columns to the source's schema
digest   compares the rows of two computations of a split
stream   `from_spark_stream`: a streaming DataFrame as an unbounded source, read by `runtime.connectors.sources.epochs`
columns  calls the author's function, checks its DataFrame and derives its columns

A job declares such a source without a folder. `Dataflow.source` binds it to a folder of the run (`ports.BindsUid`).
A standing PySpark stage writes to the folder; slots read from it. BATCH needs no folder: the DataFrame is part of the
plan.
"""
