"""Materialising the bounded inputs of a run: each DataFrame → ordered Parquet splits that its source reads by offset.

Spark writes each partition as one file, aside. The output committer (version 2) renames the file of a task when the
task commits; this module then makes it durable and publishes it as a split, while other tasks still run. A folder that
is complete is kept. After a kill the DataFrame is computed again, and splits that are there must come again: see
`sources.splits`. Adaptive execution is off, since it cuts partitions by sizes that differ between computations.

All inputs of a run share one Spark. Each has its columns checked before the first one is computed: from then on the job
may start.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from runtime.connectors.durable import make_folder
from runtime.dataflow import Dataflow
from runtime.errors import JobRejected
from spark_jobs.batch.progress import tasks_of
from spark_jobs.sources.frames import FAILED, columns_of, describe, frame_of
from spark_jobs.sources.splits import Failure, InputFolder
from spark_jobs.sources.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRESS: Final = ".progress.json"  #: in the folder of all inputs; names of sources begin with a letter
COMPLETE: Final = "complete"
LOOK_S: Final = 0.2
_PART: Final = re.compile(r"part-(\d{5,})-.*\.parquet")
_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",  # files appear with their task, not with the job
    "maxRecordsPerFile": "0",
    "compression": "zstd",
}
#: Settings of the session, for a DataFrame whose partitions are the same each time.
SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class InputProgress(msgspec.Struct, kw_only=True):
    """How far one input has come. `tasks` are those of the stages that Spark has begun."""

    state: str = "waiting"  #: waiting, writing or complete
    tasks: int = 0
    tasks_done: int = 0
    splits: int = 0
    rows: int = 0


class Progress(msgspec.Struct, kw_only=True):
    """What the console shows. `ready`: the columns of every input are fixed, so the job may start."""

    ready: bool = False
    inputs: dict[str, InputProgress] = {}


Report = Callable[[Progress], None]
Session = Callable[[], AbstractContextManager["SparkSession"]]


def inputs_of(flow: Dataflow) -> dict[str, SparkTable]:
    """The sources of `flow` that need a stage, by uid, in the order of their declaration."""
    return {uid: source for uid, source in flow.sources.items() if isinstance(source, SparkTable)}


def materialise(inputs: Mapping[str, SparkTable], session: Session, report: Report = lambda _: None) -> Progress:
    """Writes every input that is not complete. The sources are bound to their folders.

    Args:
        session: starts Spark; entered only if there is something to write.

    Raises:
        JobRejected: an input cannot be read; source and reason are named. The job learns it from the folder.
    """
    found = Progress(inputs={uid: _seen(InputFolder(Path(source.path))) for uid, source in inputs.items()})
    missing = {uid: source for uid, source in inputs.items() if found.inputs[uid].state != COMPLETE}
    if missing:
        with session() as spark:
            _write_all(missing, spark, found, report)
    found.ready = True
    return found


def _write_all(inputs: Mapping[str, SparkTable], spark: SparkSession, found: Progress, report: Report) -> None:
    uid = ""
    try:
        frames: dict[str, DataFrame] = {}
        for uid, source in inputs.items():
            frames[uid] = frame_of(uid, source, spark)
            InputFolder(Path(source.path)).begin(columns_of(uid, source, frames[uid]), keep=source.early)
        found.ready = True
        report(found)
        for uid, frame in frames.items():
            _Writing(uid, InputFolder(Path(inputs[uid].path)), frame, found.inputs[uid]).run(lambda: report(found))
    except JobRejected as error:
        InputFolder(Path(inputs[uid].path)).fail(Failure(code=error.code, detail=error.detail))
        raise


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Holds a lock on the inputs of a run. It ends with the process, so what is seen aside then is a dead stage's."""
    make_folder(root)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_progress(root: Path, progress: Progress) -> None:
    """For the console, which reads it while the stage runs."""
    aside = root / f"{PROGRESS}.new"
    aside.write_bytes(msgspec.json.encode(progress))
    aside.rename(root / PROGRESS)


def _seen(folder: InputFolder) -> InputProgress:
    complete = folder.complete()
    if complete is None:
        return InputProgress()
    return InputProgress(state=COMPLETE, splits=len(complete.splits), rows=complete.rows)


class _Writing:
    """One input: a thread that runs the Spark job, and this one, which publishes what its tasks have written."""

    def __init__(self, uid: str, folder: InputFolder, frame: DataFrame, progress: InputProgress) -> None:
        self._uid, self._folder, self._frame, self._progress = uid, folder, frame, progress
        self._aside = folder.aside()
        self._group = self._aside.name
        self._context = frame.sparkSession.sparkContext
        self._published: set[int] = set()
        self._error: Exception | None = None

    def run(self, report: Callable[[], None]) -> None:
        self._progress.state = "writing"
        job = threading.Thread(target=self._write, name=f"input-{self._uid}", daemon=True)
        job.start()
        try:
            while job.is_alive():
                job.join(LOOK_S)
                self._publish()
                self._note_tasks()
                report()
        except JobRejected:
            self._context.cancelJobGroup(self._group)
            job.join()
            raise
        if self._error is not None:
            raise JobRejected(FAILED, self._uid, f"Spark could not compute it: {describe(self._error)}")
        self._publish()
        shutil.rmtree(self._aside, ignore_errors=True)  # what is left of it goes with the next stage
        complete = self._folder.finish(self._published)
        self._progress.state, self._progress.rows = COMPLETE, complete.rows
        report()

    def _write(self) -> None:
        try:
            self._context.setJobGroup(self._group, f"input {self._uid}", interruptOnCancel=True)
            self._frame.write.options(**_OPTIONS).parquet(self._aside.absolute().as_uri())
        except Exception as error:  # noqa: BLE001 - the boundary of the thread
            self._error = error

    def _publish(self) -> None:
        for file in sorted(self._aside.glob("part-*.parquet")):
            found = _PART.fullmatch(file.name)
            assert found is not None, "names of Spark's files begin with the number of the partition"
            number = int(found[1])
            self._folder.publish(file, number)
            self._published.add(number)
            self._progress.rows += self._folder.rows(number)
            self._progress.splits = len(self._published)

    def _note_tasks(self) -> None:
        self._progress.tasks, self._progress.tasks_done = tasks_of(self._context, self._group)
