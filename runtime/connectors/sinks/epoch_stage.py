"""A sink whose rows a PySpark function delivers, epoch by epoch.

Slots write Parquet files into a folder of the run, and the job master commits the files as epochs, as for
`ParquetSink`. A standing PySpark stage of the run calls the function with each epoch (`spark_jobs.sinks.delivery`) and
then releases the epoch. This module does not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from runtime.access.data_roots import DataRoots
from runtime.connectors.commit_log import CommitLog
from runtime.connectors.epochs import no_stage_error, stage_folder
from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetWriter
from runtime.errors import JobRejected
from runtime.ports import StageFolders, UsesFolders

MAX_BACKLOG: Final = 100


@dataclass(frozen=True)
class EpochStage:
    """Calls `function(spark, frame, epoch)` with the rows of each committed epoch, sequentially and in order.

    An epoch is the set of rows that this sink committed with a checkpoint; a checkpoint without rows has no epoch.
    After a crash the function may be called again with an epoch that it has already handled. The targets in
    `spark_jobs.sinks` record the epoch in their own commit, which makes them exactly-once.

    Args:
        function: the function or a target; an exception ends the stage's process. The frame must not be used after the
            return, because the files of the epoch are then deleted. If a target has `check()`, the compilation of the
            job calls it; if it has `prepare()`, the stage calls it at its start.
        max_backlog: number of undelivered epochs above which the sources of the job are not polled.
        guarantee: guarantee of a plain function; "exactly-once" if the function writes only to targets. A target has
            its own guarantee.
    """

    stage: ClassVar[str] = "deliver"
    has_independent_writers: ClassVar[bool] = True

    function: Callable[..., None] | None = field(repr=False)
    max_backlog: int = MAX_BACKLOG
    guarantee: str = "at-least-once"
    folder: str = ""  #: "" while unknown, for example when a version is compiled
    is_bound: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "guarantee", getattr(self.function, "guarantee", self.guarantee))

    def bind(self, uid: str, folders: StageFolders) -> EpochStage:
        return replace(self, folder=stage_folder(folders.streams, uid), is_bound=True)

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state, without the author's function, which may close over a password: slots only write files."""
        return {**self.__dict__, "function": None}

    def writer(self) -> ParquetWriter:
        return ParquetWriter(self._folder_path(), self._roots())

    def committer(self) -> FileCommitter:
        return FileCommitter(self._folder_path(), self._roots())

    def commit_log(self) -> CommitLog:
        """The commit log of the epochs and their delivery."""
        return CommitLog(self._folder_path(), self._roots())

    def backlog(self) -> int:
        """Number of committed epochs that are not yet delivered."""
        log = self.commit_log()
        return sum(len(log.backlog(job, sink)) for job, sink in log.sinks())

    def folders(self) -> Mapping[str, str]:
        return self.function.folders() if isinstance(self.function, UsesFolders) else {}

    def check(self) -> None:
        if not callable(self.function):
            problem = f"must be a function of session, DataFrame and epoch, or a target, not {self.function!r}"
            raise JobRejected("bad-function", "function", problem)
        if self.max_backlog < 1:
            raise JobRejected("bad-backlog", "max_backlog", "must be at least 1")
        check = getattr(self.function, "check", None)
        if check is not None:
            check()
        if not self.is_bound:
            raise no_stage_error("EpochStage")

    def _folder_path(self) -> Path:
        if not self.folder:
            raise no_stage_error("EpochStage")
        return Path(self.folder)

    def _roots(self) -> DataRoots:
        """Allows the job's own folder, outside WEIR_DATA_ROOTS. A savepoint may name the folder of another lineage."""
        return DataRoots(allowed=(Path(self.folder).parent.parent.resolve(),))
