"""The port through which a job master reads and writes its run in the database.

Every write is conditional on the attempt token: None or False means that a newer attempt has superseded this one, which
is a value, not an error. An unavailable database raises EnvironmentFailure; the caller retries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.core.attempt.events import OperationRequest
from runtime.core.checkpoint.acknowledgements import SubtaskProgress
from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.job.ids import CheckpointId, OperatorId, Token
from runtime.core.job.lifecycle import RunEvent, RunState
from runtime.core.job.settings import RetentionPolicy
from runtime.core.snapshot.manifest import Manifest

#: The acknowledgements of pending checkpoints.
PendingProgress = Mapping[CheckpointId, Sequence[SubtaskProgress]]


def late_rows(live: Mapping[str, Any]) -> dict[str, int]:
    """The number of late rows of each step that has had some, by uid, from a live report: those of its attempt."""
    counts = {uid: step.get("counters", {}).get("late_records", 0) for uid, step in live.get("operators", {}).items()}
    return {uid: count for uid, count in counts.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsInterval:
    """Numbers of a run in an interval of about 5 s (`master.metrics_history`).

    `rows` have the columns of the table `weir_metrics`: a row per operator, and a row with operator "" for the run as a
    whole. `subtasks` has a list per number and operator, with an entry per subtask.
    """

    at: int  #: start, in ms since the epoch, rounded down to a multiple of 5 s
    rows: list[dict[str, Any]]
    subtasks: dict[OperatorId, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedCheckpoint:
    """A checkpoint about to be recorded. `folder` is relative to the job's storage root."""

    manifest: Manifest
    folder: str
    size_bytes: int
    written_bytes: int
    at: int
    operators: list[dict[str, Any]]  #: per operator, for display


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTimes:
    """The ends of the steps of an attempt's launch, in ms since the epoch."""

    listed: int  #: pending output is committed, state is assigned, inputs are listed
    opened: int  #: the cluster has answered
    connected: int  #: the processes of all slots run
    deployed: int  #: all slots have opened their operators and restored their state


class RunStore(Protocol):
    """The database records of a run, for the holder of an attempt token."""

    def next_checkpoint_id(self) -> int | None: ...
    def report_checkpoint(self, report: ReportCheckpoint) -> None: ...
    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool: ...
    def change_state(
        self, event: RunEvent, failure: Mapping[str, Any] | None = None, savepoint: int | None = None
    ) -> RunState | None:
        """Applies `event` if it is legal now. Returns the current state, or None if superseded.

        `savepoint`: the checkpoint of a completed stop or drain, whose operation is completed in the same transaction.
        """

    def next_attempt(self, reason: str, detail: Mapping[str, Any]) -> Token | None:
        """Ends the current attempt as failed and takes a newer token."""

    def end_attempt(self, outcome: str, reason: str = "") -> None: ...
    def record_restore(self, folder: str | None) -> None: ...
    def record_launch(self, times: LaunchTimes) -> None:
        """Records the times of a complete launch with the attempt."""

    def write_live(self, live: Mapping[str, Any], pending: PendingProgress | None = None) -> None:
        """Replaces the live report, and adds new acknowledgements to the rows of the `pending` checkpoints.

        With `add_history` it has a connection of its own: no other call waits for them.
        """

    def add_history(self, intervals: Sequence[MetricsInterval]) -> None:
        """Adds intervals to the history of the run's metrics. An interval that is there already is skipped."""

    def take_operations(self, *, only_cancel: bool) -> list[OperationRequest] | None:
        """Takes waiting requests, oldest first, and returns taken but incomplete ones again. None if superseded."""

    def requeue_operations(self) -> None:
        """Requeues requests that an older attempt had taken and not completed."""

    def complete_operation(
        self, id: str, result: Mapping[str, Any] | None, error: Mapping[str, Any] | None
    ) -> None: ...
    def restore_point(self, passed_over: Sequence[str] = ()) -> str | None:
        """The folder of the newest completed checkpoint of this run, else of the checkpoint that it was started from.

        Folders in `passed_over` are skipped. After the starting checkpoint follow earlier checkpoints of its run.
        """

    def checkpoints_since(self, checkpoint: int) -> list[int]:
        """Ids of the job's completed checkpoints after `checkpoint`. Excludes plain savepoints: they commit nothing."""

    def final_savepoint(self) -> str | None:
        """The folder of the savepoint of a completed stop or drain of this run; None without such a savepoint."""

    def retained_folders(self) -> list[str]:
        """Folders of every completed, not discarded checkpoint and savepoint of the job."""

    def discard_older(self, policy: RetentionPolicy) -> list[str]:
        """Marks checkpoints as discarded as `core.checkpoint.retention_plan` decides. Returns the marked folders."""
