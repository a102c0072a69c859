"""A folder of Parquet files that takes each epoch exactly once, whatever DataFrame the function makes of it.

    .weir-<source>-<number>.<attempt>/  staging: Spark is writing the epoch
    .weir-<source>-<number>.ready/      complete and durable, with final file names; only renames are left
    part-<job>-0-<sink>.<source>-<i>-<checkpoint>-<number>.parquet
    .commit-log/<job>-<sink>.<source>-<number>.json

The entry in the commit log (`runtime/connectors/commit_log`) is the commit: it names the epoch and all of its files.
If an epoch is repeated: a committed epoch is skipped, a ready epoch is renamed and logged, any other is written again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import msgspec
import pyarrow.parquet as pq

from runtime.access.data_roots import CheckedFolder
from runtime.connectors.commit_log import CommitLog, CommittedEpoch, LoggedFile
from runtime.durable import make_folder, name_write_errors, sync_path
from runtime.errors import JobRejected
from spark_jobs.sinks.targets import DeliveredEpoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ParquetTable:
    """Appends each epoch to the Parquet files of a folder, exactly once.

    `weir-output` reads whole epochs; other readers see the files of an epoch one after another.

    Args:
        path: the folder, below WEIR_DATA_ROOTS; created if missing.
    """

    guarantee: ClassVar[str] = "exactly-once"

    path: str

    def folders(self) -> Mapping[str, str]:
        return {"path": self.path}

    def check(self) -> None:
        if not self.path:
            raise JobRejected("bad-path", "path", "the folder of the table must be named")

    def __call__(self, spark: SparkSession, frame: DataFrame, epoch: DeliveredEpoch) -> None:
        self.write(frame, epoch)

    def write(self, frame: DataFrame, epoch: DeliveredEpoch) -> bool:
        """Writes the rows, unless the table has this epoch. Returns whether rows were written.

        Raises:
            JobRejected: the folder is outside the data roots, the table has other columns, or the function has
                already written into the table.
            EnvironmentFailure: a file cannot be written.
        """
        with epoch.written_once(self.path):
            return self._write(frame, epoch)

    def _write(self, frame: DataFrame, epoch: DeliveredEpoch) -> bool:
        folder = Path(self.path).absolute()
        CheckedFolder.of("path", folder).check()
        log, entry = CommitLog(folder), self._log_entry(epoch)
        ready = folder / f".weir-{epoch.source}-{epoch.number}.ready"
        if log.epochs(entry.job, entry.sink, [epoch.number]):
            shutil.rmtree(ready, ignore_errors=True)  # empty: a process died right after its commit
            return False
        make_folder(folder)
        if not ready.is_dir():
            self._stage(frame, epoch, ready, log)
        self._publish(ready, folder, log, entry)
        return True

    # ------------------------------------------------------------ steps

    def _stage(self, frame: DataFrame, epoch: DeliveredEpoch, ready: Path, log: CommitLog) -> None:
        """Writes the rows to a staging folder, makes the files durable and renames the folder to `ready`."""
        aside = ready.with_name(f"{ready.stem}.{uuid4().hex}")  # unique: a dead process's JVM may still be writing
        for left in ready.parent.glob(f"{ready.stem}.*"):
            shutil.rmtree(left, ignore_errors=True)
        frame.write.option("compression", "zstd").parquet(f"file://{aside}")
        with name_write_errors(aside):
            written = [path for path in sorted(aside.glob("part-*.parquet")) if pq.read_metadata(path).num_rows]
            if written:
                _check_columns(log, written[0])
            for place in aside.iterdir():
                if place not in written:
                    place.unlink()
            for number, path in enumerate(written):
                path.rename(aside / _file_name(self._log_entry(epoch), number))
            for place in aside.iterdir():
                sync_path(place)
            sync_path(aside)
            aside.rename(ready)
            sync_path(ready.parent)

    def _publish(self, ready: Path, folder: Path, log: CommitLog, entry: CommittedEpoch) -> None:
        """Gives the files their visible names, then appends the log entry. Idempotent."""
        with name_write_errors(folder):
            for path in sorted(ready.iterdir()):
                path.replace(folder / path.name)
            sync_path(folder)
        paths = sorted(folder.glob(f"part-{entry.job}-0-{entry.sink}-*-{entry.checkpoint}-{entry.number}.parquet"))
        files = tuple(LoggedFile(path.name, path.stat().st_size, pq.read_metadata(path).num_rows) for path in paths)
        log.append_epoch(msgspec.structs.replace(entry, files=files))
        ready.rmdir()

    @staticmethod
    def _log_entry(epoch: DeliveredEpoch) -> CommittedEpoch:
        """The log entry without files. `source` is part of the sink name, so a job that starts anew has new epochs."""
        return CommittedEpoch(
            log=epoch.source,
            job=epoch.job,
            sink=f"{epoch.sink}.{epoch.source}",
            number=epoch.number,
            token=0,
            checkpoint=epoch.checkpoint,
            highest=(0, epoch.checkpoint),
            files=(),
        )


def _file_name(entry: CommittedEpoch, number: int) -> str:
    return f"part-{entry.job}-0-{entry.sink}-{number}-{entry.checkpoint}-{entry.number}.parquet"


def _check_columns(log: CommitLog, written: Path) -> None:
    """Compares file `written` with the newest file of the table. Raises JobRejected: their columns differ."""
    newest = [epoch for job, sink in log.sinks() if (epoch := log.newest(job, sink)) is not None and epoch.files]
    if not newest:
        return
    last: Any = max(newest, key=lambda epoch: (log.folder / epoch.entry_name).stat().st_mtime_ns)
    there = log.output / last.files[0].name
    if not there.exists():
        return
    before, now = pq.read_schema(there), pq.read_schema(written)
    if not before.equals(now):
        changed = sorted({str(field) for field in [*before, *now]} - {str(f) for f in before if f in now})
        detail = f"the table {log.output} has other columns than the DataFrame: {'; '.join(changed)}"
        raise JobRejected("schema-differs", "path", detail)
