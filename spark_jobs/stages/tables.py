"""The stage of `from_spark`: each table of a run → ordered Parquet splits that its source reads by offset.

Spark writes each partition as a staging file. The output committer (version 2) renames a task's file when the task
commits. This module then makes the file durable and publishes it as a split, while other tasks still run. A complete
folder is kept. After a kill the DataFrame is computed again and must reproduce the existing splits (`sources.splits`).
Adaptive execution is off: it partitions by sizes, which differ between computations.

All tables of a run share a Spark session. The columns of all tables are checked before the first table is computed. The
stage ends when all tables are complete. A run that restores a checkpoint reads the tables of its predecessor.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.dataflow.builder import Dataflow
from runtime.errors import JobRejected
from spark_jobs.batch.progress import task_counts
from spark_jobs.session import SparkSettings, error_summary, spark_session
from spark_jobs.sources.columns import INPUT_FAILED
from spark_jobs.sources.frames import open_frame
from spark_jobs.sources.splits import InputFolder
from spark_jobs.sources.table import SparkTable
from spark_jobs.stages.standing import Figure, StageContext, StageFailure, lock_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK_NAME: Final = ".lock"  #: in the folder of the run's inputs
COMPLETE: Final = "complete"
POLL_S: Final = 0.2
MAX_PUBLISH_POLLS: Final = 150  #: polls every `POLL_S`: 30 s for a shared file system to show all files
_SPARK_GONE_PATTERN: Final = re.compile(
    "ExecutorLostFailure|SparkContext was shut down|SparkContext has been shut down"
)
_PART_PATTERN: Final = re.compile(r"part-(\d{5,})-.*\.parquet")
_WRITE_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",  # files appear at task commit, not at job commit
    "maxRecordsPerFile": "0",
    "compression": "zstd",
}
#: Session settings under which a DataFrame has the same partitions each time.
SPARK_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass
class TableProgress:
    """Progress of a table. `tasks` counts the tasks of the stages that Spark has begun."""

    state: str = "waiting"  #: waiting, writing or complete
    tasks: int = 0
    tasks_done: int = 0
    splits: int = 0
    rows: int = 0

    def __str__(self) -> str:
        rows = f"{self.rows:,} rows in {self.splits} splits"
        match self.state:
            case "waiting":
                return "waiting"
            case "writing":
                return f"{self.tasks_done} of {self.tasks} tasks done, {rows}"
        return f"complete, {rows}"


Tables = Mapping[str, TableProgress]  #: by uid
Report = Callable[[Tables], None]
Session = Callable[[], AbstractContextManager["SparkSession"]]


def write_tables(standing: StageContext) -> None:
    """Writes all missing splits of the run's tables.

    Raises:
        JobRejected: a table cannot be read; source and reason are named.
        SparkUnavailable, StageFailure: Spark does not start, or has died.
    """
    settings = SparkSettings.for_batch(f"weir: run {standing.run}, tables")
    settings = replace(settings, extra={**settings.extra, **SPARK_SETTINGS})

    def report(tables: Tables) -> None:
        standing.report(
            [Figure(uid, str(table), "text") for uid, table in tables.items()], steps=_count_splits(tables) - before
        )

    with lock_stage(standing.inputs / LOCK_NAME):  # staging files seen under the lock are of a dead stage
        before = _count_splits(progress_of(inputs_of(standing.dataflow)))
        materialise(inputs_of(standing.dataflow), lambda: spark_session(settings), report, standing.stopping)


def inputs_of(flow: Dataflow) -> dict[str, SparkTable]:
    """The `from_spark` sources of `flow`, by uid, in the order of their declaration."""
    return {uid: source for uid, source in flow.sources.items() if isinstance(source, SparkTable)}


def progress_of(inputs: Mapping[str, SparkTable]) -> dict[str, TableProgress]:
    """The progress of each table by uid, from the splits on disk."""
    return {uid: _progress_on_disk(InputFolder(Path(source.path))) for uid, source in inputs.items()}


def materialise(
    inputs: Mapping[str, SparkTable],
    session: Session,
    report: Report = lambda _: None,
    stopping: threading.Event | None = None,
) -> dict[str, TableProgress]:
    """Writes every incomplete table into the folder to which its source is bound. Returns the progress by uid.

    Args:
        session: starts Spark; entered only if a table is incomplete.
        stopping: when set, the current table is left incomplete.

    Raises:
        JobRejected: a table cannot be read; source and reason are named.
    """
    tables = progress_of(inputs)
    report(tables)
    missing = {uid: source for uid, source in inputs.items() if tables[uid].state != COMPLETE}
    if missing:
        with session() as spark:
            _write_all(missing, spark, tables, lambda: report(tables), stopping or threading.Event())
    return tables


def _write_all(
    inputs: Mapping[str, SparkTable],
    spark: SparkSession,
    tables: Tables,
    report: Callable[[], None],
    stopping: threading.Event,
) -> None:
    frames: dict[str, DataFrame] = {}
    for uid, source in inputs.items():
        found_frame = open_frame(uid, source, spark)
        InputFolder(Path(source.path)).begin(found_frame.shape.columns, keep=source.early)
        frames[uid] = found_frame.frame
    for uid, frame in frames.items():
        _TableWrite(uid, InputFolder(Path(inputs[uid].path)), frame, tables[uid]).run(report, stopping)


def _progress_on_disk(folder: InputFolder) -> TableProgress:
    complete = folder.completion()
    if complete is not None:
        return TableProgress(state=COMPLETE, splits=len(complete.splits), rows=complete.rows)
    there = folder.splits()
    return TableProgress(splits=len(there), rows=sum(map(folder.row_count, there)))


def _count_splits(tables: Tables) -> int:
    return sum(table.splits for table in tables.values())


class _TableWrite:
    """A table being written: a thread runs the Spark job; the calling thread publishes the files of its tasks."""

    def __init__(self, uid: str, folder: InputFolder, frame: DataFrame, progress: TableProgress) -> None:
        self._uid, self._folder, self._frame, self._progress = uid, folder, frame, progress
        self._aside = folder.staging_path()
        self._group = self._aside.name
        self._context = frame.sparkSession.sparkContext
        self._published: set[int] = set()
        self._published_rows = 0  #: rows in the splits of this computation
        self._expected_rows = 0  #: rows of the DataFrame, as counted by Spark
        self._error: Exception | None = None

    def run(self, report: Callable[[], None], stopping: threading.Event) -> None:
        self._progress.state = "writing"
        job = threading.Thread(target=self._write, name=f"table-{self._uid}", daemon=True)
        job.start()
        try:
            while job.is_alive() and not stopping.is_set():
                job.join(POLL_S)
                self._publish()
                self._update_tasks()
                report()
        finally:
            if job.is_alive():
                self._context.cancelJobGroup(self._group)
                job.join()
        if stopping.is_set():
            return
        if self._error is not None:
            raise self._failure(self._error)
        self._publish_rest()
        shutil.rmtree(self._aside, ignore_errors=True)  # the next stage deletes the rest
        complete = self._folder.finish(self._published)
        self._progress.state, self._progress.splits = COMPLETE, len(complete.splits)
        self._progress.rows = complete.rows
        report()

    def _write(self) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        try:
            self._context.setJobGroup(self._group, f"input {self._uid}", interruptOnCancel=True)
            counted = Observation()
            frame = self._frame.observe(counted, f.count(f.lit(1)).alias("rows"))
            frame.write.options(**_WRITE_OPTIONS).parquet(self._aside.absolute().as_uri())
            self._expected_rows = int(counted.get["rows"])
        except Exception as error:  # noqa: BLE001 - thread boundary: `run` raises it
            self._error = error

    def _publish_rest(self) -> None:
        """Publishes until Spark's row count is reached: a shared file system may show files of other hosts late.

        Raises:
            StageFailure: splits are missing.
        """
        for _ in range(MAX_PUBLISH_POLLS):
            self._publish()
            if self._published_rows == self._expected_rows:
                return
            threading.Event().wait(POLL_S)
        detail = (
            f"Spark has written {self._expected_rows:,} rows, but {self._published_rows:,} are visible here: "
            f"{self._folder.path}"
        )
        raise StageFailure("splits-missing", self._uid, detail)

    def _failure(self, error: Exception) -> Exception:
        """JobRejected for an error of data or user code, which would repeat; StageFailure if Spark is lost."""
        from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

        detail = f"Spark could not compute it: {error_summary(error)}"
        if isinstance(error, OSError | Py4JNetworkError) or _SPARK_GONE_PATTERN.search(str(error)):
            return StageFailure("spark-unavailable", self._uid, detail)
        return JobRejected(INPUT_FAILED, self._uid, detail)

    def _publish(self) -> None:
        for file in sorted(self._aside.glob("part-*.parquet")):
            match = _PART_PATTERN.fullmatch(file.name)
            assert match is not None, "names of Spark's files begin with the number of the partition"
            number = int(match[1])
            is_new = not self._folder.has_split(number)
            self._folder.publish(file, number)
            rows = self._folder.row_count(number)
            if number not in self._published:  # a repeated task, which Spark took for lost, counts once
                self._published.add(number)
                self._published_rows += rows
            if is_new:
                self._progress.rows += rows
                self._progress.splits += 1

    def _update_tasks(self) -> None:
        self._progress.tasks, self._progress.tasks_done = task_counts(self._context, self._group)
