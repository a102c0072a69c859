"""A sink whose rows a PySpark function delivers, epoch by epoch.

Slots write Parquet files into a folder of the run, and the job master commits them there as epochs, as `ParquetSink`
does. A PySpark stage that stands beside the run calls the function with each epoch (`spark_jobs.sinks.delivery`), then
releases it. This module knows no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.names import safe
from runtime.connectors.sinks.parquet import ParquetCommitter, ParquetWriter
from runtime.data_roots import DataRoots
from runtime.errors import JobRejected
from runtime.ports import StageFolders, UsesFolders

VERB: Final = "deliver"  #: of the stage
MAX_BACKLOG: Final = 100


@dataclass(frozen=True)
class EpochStage:
    """Calls `function(spark, frame, epoch)` with the rows of each committed epoch, in order, one at a time.

    An epoch is what this sink has committed with one checkpoint; a checkpoint without rows has none. After a crash the
    function may be called again with an epoch that it has handled: the targets in `spark_jobs.sinks` record the epoch
    in their own commit, which makes them exact.

    Args:
        function: or a target; what it raises ends the stage's process. It must not keep the frame: the files of an
            epoch are deleted once it has returned. Of an object, `check()` is called where the job is compiled, and
            `prepare()` when the stage starts.
        max_backlog: while more epochs than this wait for the function, the sources of the job are not read.
        guarantee: of a function; "exactly-once" if it writes through targets only. A target has its own.
    """

    stage: ClassVar[str] = VERB

    function: Callable[..., None] | None = field(repr=False)
    max_backlog: int = MAX_BACKLOG
    guarantee: str = "at-least-once"
    folder: str = ""  #: "": not known yet, as when a version is compiled
    is_bound: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "guarantee", getattr(self.function, "guarantee", self.guarantee))

    def bound(self, uid: str, folders: StageFolders) -> EpochStage:
        folder = str(Path(folders.streams) / safe(uid)) if folders.streams else ""
        return replace(self, folder=folder, is_bound=True)

    def __getstate__(self) -> dict[str, Any]:
        """Slots only write: the author's function, and what it closes over, such as a password, stays behind."""
        return {**self.__dict__, "function": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def writer(self) -> ParquetWriter:
        return ParquetWriter(self._place(), self._roots())

    def committer(self) -> ParquetCommitter:
        return ParquetCommitter(self._place(), self._roots())

    def log(self) -> CommitLog:
        """The epochs, with how far they have been delivered."""
        return CommitLog(self._place(), self._roots())

    def backlog(self) -> int:
        """Epochs that are committed and not delivered."""
        log = self.log()
        return sum(len(log.backlog(job, sink)) for job, sink in log.sinks())

    def folders(self) -> Mapping[str, str]:
        """Those of the target."""
        return self.function.folders() if isinstance(self.function, UsesFolders) else {}

    def check(self) -> None:
        if not callable(self.function):
            problem = f"a function of session, DataFrame and epoch, or a target, is needed, not {self.function!r}"
            raise JobRejected("bad-function", "function", problem)
        if self.max_backlog < 1:
            raise JobRejected("bad-backlog", "max_backlog", "must be at least 1")
        check = getattr(self.function, "check", None)
        if check is not None:
            check()
        if not self.is_bound:
            raise JobRejected("no-stage", "EpochStage", _NO_STAGE)

    def _place(self) -> Path:
        if not self.folder:
            raise JobRejected("no-stage", "EpochStage", _NO_STAGE)
        return Path(self.folder)

    def _roots(self) -> DataRoots:
        """The folder is Weir's own: no data root allows it. A savepoint may name that of another lineage of the job."""
        return DataRoots(allowed=(Path(self.folder).parent.parent.resolve(),))


_NO_STAGE: Final = "its PySpark stage is started with a run: offer the job as a Pipeline and start it in the console"
