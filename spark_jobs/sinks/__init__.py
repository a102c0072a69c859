"""Targets of a sink `weir.EpochStage`, whose rows go through Spark.

    stream.sink("totals", EpochStage(PostgresTable(params.database_url, "totals")))
    stream.sink("wide", EpochStage(widen))          # def widen(spark, frame, epoch): …

delivery        calls the function with each epoch, in order
targets         the epoch's identity, and the errors of a target
parquet_table   `ParquetTable`: a folder of Parquet files with a commit log, exactly once
postgres_table  `PostgresTable`: a table in Postgres, exactly once

A function may call a target itself: `PostgresTable(…).write(frame.groupBy(…).count(), epoch)`.
"""
