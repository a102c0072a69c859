"""What must now be done, in the imperative. A host performs a list in order before the machine's next event."""

from dataclasses import dataclass

from runtime.core.job.ids import ChannelId, CheckpointId, SubtaskId
from runtime.core.job.messages import Barrier, CheckpointKind, Control, Records
from runtime.core.snapshot.manifest import CommitPermit, FailureReason, Fate, Manifest, SnapshotTimings, SubtaskSnapshot

# ---------------------------------------------------------------- of a subtask


@dataclass(frozen=True, slots=True)
class Process:
    """Hand the records to the operator."""

    channel: ChannelId
    records: Records


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """Fire event-time timers up to and including `time`."""

    time: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send on every output channel, behind all records emitted so far. Never held up by credits."""

    message: Control


@dataclass(frozen=True, slots=True)
class PreparePreBarrier:
    """Let the operator emit what must precede the barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Copy the state as it is now and store it in the background; answer SnapshotStored or SnapshotFailed.

    `logs`: a log of what comes round in the loop belongs to it, so it is stored, and answered, at CloseLog. `inherits`
    names an earlier try to stop the job: its log goes over to this one, since the operator never saw those records.
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
    """The log is complete: store it with what was copied at the barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class DropLog:
    """The checkpoint was given up: forget its log and what was copied for it."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Settle:
    """Let the operator emit whatever it holds back, with no further input: the loop around it may be at its end."""


@dataclass(frozen=True, slots=True)
class EndInput:
    """Input `input` has truly ended."""

    input: int


@dataclass(frozen=True, slots=True)
class Finish:
    """All inputs have truly ended: emit what is left; no output after this."""


@dataclass(frozen=True, slots=True)
class CommitOutput:
    """Tell the operator that the checkpoint is durable; a sink commits."""

    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class ForgetCheckpoint:
    """Tell the operator that the checkpoint was given up."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Close:
    """Free the operator's resources."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the coordinator that this subtask's part is durable."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    timings: SnapshotTimings


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the coordinator that this subtask cannot take part."""

    checkpoint: CheckpointId
    reason: FailureReason
    detail: str


@dataclass(frozen=True, slots=True)
class ReportBuildSide:
    """Tell the master that this subtask of a join holds its build side whole."""


@dataclass(frozen=True, slots=True)
class ReportFinished:
    """Tell the coordinator that the logic is done and only the last checkpoint is awaited."""


@dataclass(frozen=True, slots=True)
class ReportEnded:
    """Tell the coordinator that the subtask is gone."""


SubtaskEffect = (
    Process
    | AdvanceWatermark
    | Broadcast
    | PreparePreBarrier
    | CaptureState
    | LogFeedback
    | CloseLog
    | DropLog
    | Settle
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
    """Send Ticked at `at` or soon after. Earlier wishes stay."""

    at: int


@dataclass(frozen=True, slots=True)
class TriggerSubtask:
    """Inject the barrier at this subtask."""

    subtask: SubtaskId
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """Write the manifest durably, then record it under the attempt token; answer ManifestRecorded or ManifestFailed.

    While the outcome is unknown nothing is answered: it is read back first.
    """

    manifest: Manifest
    timings: tuple[tuple[SubtaskId, SnapshotTimings], ...]


@dataclass(frozen=True, slots=True)
class NotifyCompleted:
    """Tell these subtasks that the checkpoint is durable."""

    permit: CommitPermit
    subtasks: frozenset[SubtaskId]


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell these subtasks that the checkpoint is given up."""

    checkpoint: CheckpointId
    subtasks: frozenset[SubtaskId]


@dataclass(frozen=True, slots=True)
class ReportCheckpoint:
    """Record how a checkpoint stands, for people. `reason` is set when it has failed."""

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
    """A subtask answered for a checkpoint that takes no answers any more. Nothing follows: count it, or log it.

    `declined` tells a decline from an acknowledgement; `reason` is set when the checkpoint had failed.
    """

    subtask: SubtaskId
    checkpoint: CheckpointId
    declined: bool
    fate: Fate
    reason: FailureReason | None = None


@dataclass(frozen=True, slots=True)
class SettleOperation:
    """A request has come to its end. `checkpoint` is set when one was completed for it."""

    operation: str
    checkpoint: CheckpointId | None
    reason: FailureReason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """A stop or drain came to nothing and needs no restart: the job simply goes on, or ends by itself."""


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """The attempt cannot go on: restart from the last completed checkpoint, if the strategy allows."""

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
    | SettleOperation
    | ResumeJob
    | FailAttempt
    | EndJob
)
