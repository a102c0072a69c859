"""What a job master reads and writes about its run: the role and the values.

Every write is conditional on the attempt token: None or False means that this attempt has been superseded, which is a
value, not an error. A database that is away raises EnvironmentFailure and the caller tries again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.core.effects import ReportCheckpoint
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunEvent, RunState
from runtime.core.snapshot.manifest import Manifest


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """What somebody asks of the run: "savepoint", "stop", "drain" or "cancel"."""

    id: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A checkpoint about to be recorded. `folder` is relative to the job's storage root."""

    manifest: Manifest
    folder: str
    size_bytes: int
    written_bytes: int
    at: int
    operators: list[dict[str, Any]]  #: per operator, for people


class RunRecords(Protocol):
    """One run, seen by the holder of an attempt token."""

    def next_checkpoint_id(self) -> int | None: ...
    def report_checkpoint(self, report: ReportCheckpoint) -> None: ...
    def record_completed(self, completed: Completed) -> bool: ...
    def change_state(
        self, event: RunEvent, failure: Mapping[str, Any] | None = None, savepoint: int | None = None
    ) -> RunState | None:
        """Applies `event` if it is legal now. Returns the state that holds, None when superseded.

        `savepoint` is the checkpoint of a completed stop or drain: in the same act whoever asked for it is told.
        """

    def next_attempt(self, reason: str, detail: Mapping[str, Any]) -> Token | None:
        """Ends the current attempt as failed and takes a newer token."""

    def end_attempt(self, outcome: str, reason: str = "") -> None: ...
    def note_restored(self, folder: str | None) -> None: ...
    def write_live(self, live: Mapping[str, Any]) -> None: ...
    def take_operations(self, *, only_cancel: bool) -> list[OperationRequest] | None:
        """Takes waiting requests, oldest first, and tells again of those taken and not settled.

        None when superseded.
        """

    def requeue_operations(self) -> None:
        """Gives back what an older attempt had taken and not settled."""

    def settle_operation(self, id: str, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> None: ...
    def restore_point(self, passed_over: Sequence[str] = ()) -> str | None:
        """Folder of the newest completed checkpoint of this run for recovery, else of what it was started from.

        Those in `passed_over` are left out; behind what the run was started from comes what that was built on.
        """

    def committed_since(self, checkpoint: int) -> list[int]:
        """Numbers of the job's completed checkpoints after `checkpoint`, without savepoints that told nobody."""

    def final_savepoint(self) -> str | None:
        """Folder of a completed stop or drain of this run."""

    def retained(self) -> list[str]:
        """Folders of every completed, not discarded checkpoint and savepoint of the job."""

    def discard_beyond(self, keep: int) -> list[str]:
        """Marks all but the job's newest `keep` checkpoints as discarded, savepoints never. Returns their folders."""
