"""The jobs of L1 in Structured Streaming: micro-batches without a pause, over rows that are due at fixed times.

A batch takes all rows that are due at its begin. They are visible when it has ended: a batch is a checkpoint. The
times follow from the progress that Spark reports, so nothing is measured within a batch. The state store is RocksDB
with changelog checkpoints, as Spark's documents recommend; the sink is `noop`.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from benchmarks.latency.job import KEYS, SCHEMA, Arrivals, Pace
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

TITLE: Final = "Structured Streaming"
PARTITIONS: Final = 2
_POLL_S: Final = 0.1
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "4g",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


@dataclass(frozen=True)
class Batch:
    """The rows `first` to `end` - 1, visible at `at` (Unix time)."""

    first: int
    end: int
    at: float

    def arrivals(self) -> Arrivals:
        at = np.full(self.end - self.first, self.at)
        return Arrivals(np.arange(self.first, self.end), at, at)


class _Rows(InputPartition):
    def __init__(self, first: int, end: int, step: int) -> None:
        super().__init__(first)
        self.first, self.end, self.step = first, end, step


class _Reader(DataSourceStreamReader):
    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"id": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  # Spark's name
        due = int((time.time() - self._pace.began_s) * self._pace.rate)
        return {"id": max(0, min(due, self._pace.rows))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Rows(start["id"] + index, end["id"], PARTITIONS) for index in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Rows), "this reader makes the partitions"
        ids = np.arange(partition.first, partition.end, partition.step, dtype=np.int64)
        yield pa.RecordBatch.from_arrays([ids, ids * KEY_MULTIPLIER % KEYS, ids * 0.5], schema=SCHEMA)


class OpenLoopSource(DataSource):
    """The rows of `OpenLoop` for Structured Streaming; its options are the pace."""

    @classmethod
    def name(cls) -> str:
        return "open-loop"

    def schema(self) -> str:
        return "id bigint not null, key bigint not null, value double not null"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        options = self.options
        pace = Pace(rate=int(options["rate"]), seconds=float(options["seconds"]), began_s=float(options["began_s"]))
        return _Reader(pace)


def _stateless(rows: DataFrame) -> DataFrame:
    return rows.filter("value >= 0").withColumn("value", f.col("value") * 2)


def _running(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(f.max("id").alias("id"), f.count("*").alias("n"), f.sum("value").alias("total"))


_JOBS: Final = {"stateless": (_stateless, "append"), "running": (_running, "update")}


def start_session() -> SparkSession:
    builder = SparkSession.builder.appName("bench-latency").master(f"local[{PARTITIONS}]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(OpenLoopSource)
    return session


def run(session: SparkSession, name: str, pace: Pace, folder: Path) -> Arrivals:
    """Runs the job until all rows are visible. `folder`: new, since a state store writes to it after its query.

    Raises:
        RuntimeError: the query has failed.
    """
    job, mode = _JOBS[name]
    options = {option: str(value) for option, value in asdict(pace).items()}
    rows = session.readStream.format(OpenLoopSource.name()).options(**options).load()
    writer = job(rows).writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(folder))
    query = writer.start()
    try:
        while True:
            time.sleep(_POLL_S)
            if not query.isActive:
                raise RuntimeError(f"the query ended: {query.exception()}")
            batches = [batch_of(each) for each in query.recentProgress if each.numInputRows]
            if batches and batches[-1].end >= pace.rows:
                return Arrivals.joined([each.arrivals() for each in batches])
    finally:
        query.stop()


def batch_of(progress: Any) -> Batch:
    source = progress.sources[0]
    first = 0 if source.startOffset in (None, "None", "null") else json.loads(source.startOffset)["id"]
    began = datetime.fromisoformat(progress.timestamp).timestamp()
    at = began + progress.durationMs["triggerExecution"] / 1000
    return Batch(first=first, end=json.loads(source.endOffset)["id"], at=at)
