"""What happened, in the past tense: the only way time, randomness, ids and the outside world enter a machine."""

from dataclasses import dataclass

from runtime.core.job.ids import ChannelId, CheckpointId, OperatorId, SubtaskId
from runtime.core.job.messages import Barrier, CheckpointKind, Message, Records
from runtime.core.snapshot.manifest import CommitPermit, FailureReason, SnapshotTimings, SubtaskSnapshot

# ---------------------------------------------------------------- to a subtask


@dataclass(frozen=True, slots=True)
class SubtaskStarted:
    """The operator is open, state is restored; from now on messages may come."""


@dataclass(frozen=True, slots=True)
class ProbeSideOpened:
    """Every subtask of `join` holds its build side whole: what leads to its probe side may begin."""

    join: OperatorId


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """The next message of a channel that the machine calls readable."""

    channel: ChannelId
    message: Message


@dataclass(frozen=True, slots=True)
class SourceAdvanced:
    """A source's own watermark has risen to `watermark`."""

    watermark: int


@dataclass(frozen=True, slots=True)
class SourceIdle:
    """A source has nothing to read and does not know when it will: event time must not wait for it."""


@dataclass(frozen=True, slots=True)
class SourceResumed:
    """A source that was idle has records again; they have not been sent yet."""


@dataclass(frozen=True, slots=True)
class SourceExhausted:
    """A bounded source has given out everything."""


@dataclass(frozen=True, slots=True)
class Triggered:
    """The coordinator injects `barrier` here: a source, or a subtask whose predecessors have all ended."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class SnapshotStored:
    """The background part of a snapshot is durable."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    timings: SnapshotTimings


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The background part of a snapshot failed; what it held rides with the next one."""

    checkpoint: CheckpointId
    detail: str


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The checkpoint is durable and recorded."""

    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The coordinator gave the checkpoint up."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class FeedbackReplayed:
    """The next records of a restored log, at the head of a loop; they come before everything that channels bring."""

    records: Records


@dataclass(frozen=True, slots=True)
class FeedbackReplayEnded:
    """The restored log is at its end."""


SubtaskEvent = (
    SubtaskStarted
    | ProbeSideOpened
    | FeedbackReplayed
    | FeedbackReplayEnded
    | MessageArrived
    | SourceAdvanced
    | SourceIdle
    | SourceResumed
    | SourceExhausted
    | Triggered
    | SnapshotStored
    | SnapshotFailed
    | CheckpointCompleted
    | CheckpointAborted
)

# ---------------------------------------------------------------- to the coordinator; `at` is milliseconds


@dataclass(frozen=True, slots=True)
class JobStarted:
    """Every subtask runs. `resumed`: from a checkpoint, not from nothing."""

    at: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Ticked:
    """A wake-up that the coordinator asked for, or any later moment."""

    at: int


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A person or program wants a savepoint, stop, drain or checkpoint. `operation` names the request."""

    at: int
    kind: CheckpointKind
    operation: str


@dataclass(frozen=True, slots=True)
class IdIssued:
    """The id that was asked for. Greater than all before it."""

    at: int
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class IdUnavailable:
    """No id could be had."""

    at: int
    detail: str


@dataclass(frozen=True, slots=True)
class TriggerFailed:
    """The host met an error of its own when a checkpoint was to be triggered."""

    at: int
    detail: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A subtask's snapshot is durable."""

    at: int
    subtask: SubtaskId
    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    timings: SnapshotTimings


@dataclass(frozen=True, slots=True)
class CheckpointDeclined:
    """A subtask cannot take part."""

    at: int
    subtask: SubtaskId
    checkpoint: CheckpointId
    reason: FailureReason
    detail: str


@dataclass(frozen=True, slots=True)
class LogicFinished:
    """A subtask has sent EndOfData and waits for its last checkpoint."""

    at: int
    subtask: SubtaskId


@dataclass(frozen=True, slots=True)
class SubtaskEnded:
    """A subtask has sent EndOfPartition and closed."""

    at: int
    subtask: SubtaskId


@dataclass(frozen=True, slots=True)
class ManifestRecorded:
    """The manifest is durable and recorded: the checkpoint exists."""

    at: int
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    """The manifest could not be stored or recorded, and certainly is not recorded."""

    at: int
    checkpoint: CheckpointId
    detail: str


@dataclass(frozen=True, slots=True)
class CoordinatorSuspended:
    """The attempt ends (failure, cancel, release): whatever is pending or queued is given up."""

    at: int


CoordinatorEvent = (
    JobStarted
    | Ticked
    | CheckpointRequested
    | IdIssued
    | IdUnavailable
    | TriggerFailed
    | Acknowledged
    | CheckpointDeclined
    | LogicFinished
    | SubtaskEnded
    | ManifestRecorded
    | ManifestFailed
    | CoordinatorSuspended
)
