"""Effects of the coordinator, in the imperative. The master performs them in order before the next event."""

from dataclasses import dataclass
from enum import StrEnum

from runtime.core.checkpoint.acknowledgements import SubtaskProgress
from runtime.core.job.ids import CheckpointId, SubtaskId
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import TriggerSubtask
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest, SnapshotTimings


class CheckpointStatus(StrEnum):
    """The status of a checkpoint when a late acknowledgement or decline arrives."""

    STORING = "storing"  #: every subtask has acknowledged; the manifest is being stored
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"  #: never pending in this attempt, or evicted from the recent checkpoints


@dataclass(frozen=True, slots=True)
class IssueId:
    """Get the next checkpoint id; answer IdIssued or IdUnavailable."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send Ticked at `at` or soon after. Earlier `WakeAt` effects stay valid."""

    at: int


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Write the manifest durably, then record it under the attempt token; answer ManifestRecorded or ManifestFailed.

    If the outcome is unknown, record the manifest again before answering: recording is idempotent.
    """

    manifest: Manifest
    timings: tuple[tuple[SubtaskId, SnapshotTimings], ...]


@dataclass(frozen=True, slots=True)
class NotifyCompleted:
    """Notify `subtasks` that the checkpoint has completed."""

    permit: CommitPermit
    subtasks: frozenset[SubtaskId]


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Notify `subtasks` that the checkpoint was aborted."""

    checkpoint: CheckpointId
    subtasks: frozenset[SubtaskId]


@dataclass(frozen=True, slots=True)
class ReportCheckpoint:
    """Record the progress of a checkpoint for display. `reason` is set if it has failed.

    `progress` has an entry for each subtask that takes part, by operator and index.
    """

    checkpoint: CheckpointId
    kind: CheckpointKind
    triggered_at: int
    at: int
    acknowledged: int
    subtasks: int
    reason: FailureReason | None = None
    detail: str = ""
    progress: tuple[SubtaskProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class LateAnswer:
    """A subtask acknowledged or declined a checkpoint that is not pending any more: count or log it.

    `declined`: the answer was a decline. `reason` is set if the checkpoint had failed.
    """

    subtask: SubtaskId
    checkpoint: CheckpointId
    declined: bool
    status: CheckpointStatus
    reason: FailureReason | None = None


@dataclass(frozen=True, slots=True)
class CompleteOperation:
    """A requested operation has ended. `checkpoint` is set if the operation completed, `reason` if it failed."""

    operation: str
    checkpoint: CheckpointId | None
    reason: FailureReason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """A stop or drain failed without need of a restart: the job continues, or ends by itself."""


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """The attempt must end: restart from the last completed checkpoint, if the restart strategy allows."""

    detail: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """Every subtask has ended."""


CoordinatorEffect = (
    IssueId
    | WakeAt
    | TriggerSubtask
    | StoreManifest
    | NotifyCompleted
    | NotifyAborted
    | ReportCheckpoint
    | LateAnswer
    | CompleteOperation
    | ResumeJob
    | FailAttempt
    | EndJob
)
