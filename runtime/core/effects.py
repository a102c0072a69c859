"""Effects, named in the imperative. A host performs a list of effects in order, before the machine's next event."""

from dataclasses import dataclass

from runtime.core.job.ids import ChannelId, CheckpointId, SubtaskId
from runtime.core.job.messages import Barrier, CheckpointKind, Control, Records
from runtime.core.snapshot.manifest import (
    CheckpointStatus,
    CommitPermit,
    FailureReason,
    Manifest,
    SnapshotTimings,
    SubtaskSnapshot,
)

# ---------------------------------------------------------------- of a subtask


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """Hand the records to the operator."""

    channel: ChannelId
    records: Records


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """Fire event-time timers up to and including `time`."""

    time: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send on every output channel, behind all records emitted so far. Never blocked by credits."""

    message: Control


@dataclass(frozen=True, slots=True)
class PreparePreBarrier:
    """Let the operator emit the rows that must precede the barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Copy the state now and store it in the background; answer SnapshotStored or SnapshotFailed.

    `logs`: a log of feedback records belongs to the snapshot, so it is stored and answered at CloseLog. `inherits`: an
    earlier checkpoint to stop the job. Its log becomes part of this one, since the operator never saw those records.
    """

    barrier: Barrier
    finished: bool
    watermark: int
    logs: bool = False
    inherits: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class LogFeedback:
    """Add the records to the logs of these checkpoints."""

    checkpoints: tuple[CheckpointId, ...]
    records: Records


@dataclass(frozen=True, slots=True)
class CloseLog:
    """The log is complete: store it with the state that was copied at the barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class DropLog:
    """The checkpoint was aborted: discard its log and the copied state."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class FlushLoop:
    """Let the operator emit its buffered rows without further input, so that the loop can terminate."""


@dataclass(frozen=True, slots=True)
class EndInput:
    """The data of input `input` has ended on all its channels."""

    input: int


@dataclass(frozen=True, slots=True)
class Finish:
    """All data has ended: let the operator emit its last rows. No output may follow."""


@dataclass(frozen=True, slots=True)
class CommitOutput:
    """Notify the operator that the checkpoint has completed; a sink commits."""

    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class ForgetCheckpoint:
    """Notify the operator that the checkpoint was aborted."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Close:
    """Free the operator's resources."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledge to the coordinator: this subtask's snapshot is durable."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    timings: SnapshotTimings


@dataclass(frozen=True, slots=True)
class Decline:
    """Decline to the coordinator: this subtask cannot take part."""

    checkpoint: CheckpointId
    reason: FailureReason
    detail: str


@dataclass(frozen=True, slots=True)
class ReportBuildSide:
    """Report to the master that this subtask of a join has read its build side."""


@dataclass(frozen=True, slots=True)
class ReportFinished:
    """Report to the coordinator that the logic has finished and the subtask waits for the last checkpoint."""


@dataclass(frozen=True, slots=True)
class ReportEnded:
    """Report to the coordinator that the subtask has ended."""


SubtaskEffect = (
    ProcessRecords
    | AdvanceWatermark
    | Broadcast
    | PreparePreBarrier
    | CaptureState
    | LogFeedback
    | CloseLog
    | DropLog
    | FlushLoop
    | EndInput
    | Finish
    | CommitOutput
    | ForgetCheckpoint
    | Close
    | Acknowledge
    | Decline
    | ReportBuildSide
    | ReportFinished
    | ReportEnded
)

# ---------------------------------------------------------------- of the coordinator


@dataclass(frozen=True, slots=True)
class IssueId:
    """Get the next checkpoint id; answer IdIssued or IdUnavailable."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send Ticked at `at` or soon after. Earlier requests stay valid."""

    at: int


@dataclass(frozen=True, slots=True)
class TriggerSubtask:
    """Inject the barrier at this subtask."""

    subtask: SubtaskId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Write the manifest durably, then record it under the attempt token; answer ManifestRecorded or ManifestFailed.

    While the outcome of a write is unknown, read it back before answering.
    """

    manifest: Manifest
    timings: tuple[tuple[SubtaskId, SnapshotTimings], ...]


@dataclass(frozen=True, slots=True)
class NotifyCompleted:
    """Notify these subtasks that the checkpoint has completed."""

    permit: CommitPermit
    subtasks: frozenset[SubtaskId]


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Notify these subtasks that the checkpoint was aborted."""

    checkpoint: CheckpointId
    subtasks: frozenset[SubtaskId]


@dataclass(frozen=True, slots=True)
class ReportCheckpoint:
    """Record the progress of a checkpoint for display. `reason` is set if it has failed."""

    checkpoint: CheckpointId
    kind: CheckpointKind
    triggered_at: int
    at: int
    acknowledged: int
    subtasks: int
    reason: FailureReason | None = None
    detail: str = ""


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
    """A requested operation has ended. `checkpoint` is set if it completed, else `reason`."""

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
