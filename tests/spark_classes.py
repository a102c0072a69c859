"""Archives the classes that Spark loads: `python -m tests.spark_classes FILE`, once per checkout, by the Makefile.

A JVM of a test lives for seconds, and spends about half of them on loading and verifying classes. With an archive of
the JDK (class data sharing) it maps them instead. A JVM that does not fit the archive, because of another JDK or class
path, loads its classes as before.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stack.launch.java import find_java


def main(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".new")
    java = find_java(os.environ) or ""
    os.environ.update({"JAVA_HOME": java, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.port", "0")
        builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        options = f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
        load_classes(builder.config("spark.driver.extraJavaOptions", options).getOrCreate(), folder)
    if unfinished.exists():  # not where the JDK has no archive of its own classes
        unfinished.replace(archive)


def load_classes(spark: SparkSession, folder: str) -> None:
    """Runs a query of each kind that tests run, and ends the JVM, which then writes the archive."""
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(list).collect()
    rows = spark.range(100).selectExpr("id", "id % 7 AS key", "cast(id AS string) AS text")
    rows.write.partitionBy("key").parquet(f"{folder}/rows")
    stored = spark.read.parquet(f"{folder}/rows")
    stored.join(stored.groupBy("key").agg({"id": "max"}), "key").orderBy("id").toArrow()
    rows.mapInArrow(lambda batches: batches, rows.schema).collect()
    rows.select("text").write.text(f"{folder}/lines")
    stream = spark.readStream.text(f"{folder}/lines").writeStream.foreachBatch(count)
    stream.option("checkpointLocation", f"{folder}/stream").trigger(availableNow=True).start().awaitTermination()
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def count(rows: DataFrame, _: int) -> None:
    rows.count()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
