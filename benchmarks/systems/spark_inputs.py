"""The tables of a task as streams of Structured Streaming, or as a whole."""

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.datasets import DATASETS
from benchmarks.datasets.files import FILES
from benchmarks.protocol import Task

#: Rows of a batch of about a second.
ROWS_PER_BATCH: Final = {
    "ads": 600_000,
    "ads-read": 600_000,
    "clicks": 60_000,
    "clicks-read": 100_000,
    "payments": 150_000,
    "payments-arrow": 150_000,
    "payments-read": 300_000,
    "records": 100_000,
    "records-read": 300_000,
    "tpch": 200_000,
    "tpch-read": 500_000,
}
NEXMARK_ROWS_PER_BATCH: Final = 500_000
#: Also of a small run, which warms up. A batch has the watermark of its predecessor, so few batches drop no rows.
MIN_BATCHES: Final = 8


class SparkInputs:
    """The tables of a task as streams, or as a whole."""

    def __init__(self, spark: SparkSession, task: Task, phase: str) -> None:
        self._spark, self._task, self._phase = spark, task, phase
        self._rows = task.check_rows if phase == "check" else task.rows

    def _path(self, name: str) -> str:
        return str(self._task.input(self._phase) / name)

    def _schema(self, name: str) -> str:
        assert self._task.dataset is not None, "the task has a data set"
        columns = DATASETS[self._task.dataset][name].columns
        return ", ".join(f"{column} {kind}" for column, (kind, _) in columns.items())

    def stream(self, name: str, time: str, delay: str = "") -> DataFrame:
        """A table. `time`: its column of event times; `delay`: of the watermark, by default the disorder."""
        rows_per_batch = ROWS_PER_BATCH.get(self._task.kind, NEXMARK_ROWS_PER_BATCH)
        files = max(1, min(round(FILES * rows_per_batch / self._rows), FILES // MIN_BATCHES))
        source = self._spark.readStream.format(str(self._task.files)).schema(self._schema(name))
        rows = source.option("maxFilesPerTrigger", files).load(self._path(name))
        return rows.withWatermark(time, delay or f"{self._task.disorder_ms} milliseconds")

    def table(self, name: str) -> DataFrame:
        return self._spark.read.format(str(self._task.files)).schema(self._schema(name)).load(self._path(name))
