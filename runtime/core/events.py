"""Events, named in the past tense: the only way for time, randomness, ids and messages to enter a machine."""

from dataclasses import dataclass

from runtime.core.job.ids import ChannelId, CheckpointId, OperatorId, SubtaskId
from runtime.core.job.messages import Barrier, CheckpointKind, Message, Records
from runtime.core.snapshot.manifest import CommitPermit, FailureReason, SnapshotTimings, SubtaskSnapshot

# ---------------------------------------------------------------- to a subtask


@dataclass(frozen=True, slots=True)
class SubtaskStarted:
    """The operator is open and its state is restored; messages may arrive from now on."""


@dataclass(frozen=True, slots=True)
class ProbeSideOpened:
    """Every subtask of `join` has read its build side: operators that lead to its probe side may emit."""

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
    """A source has no records for an unknown time: event time must not wait for it."""


@dataclass(frozen=True, slots=True)
class SourceResumed:
    """An idle source has records again; they have not been sent yet."""


@dataclass(frozen=True, slots=True)
class SourceExhausted:
    """A bounded source has emitted all its records."""


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
    """The background part of a snapshot failed; its content is part of the next snapshot."""

    checkpoint: CheckpointId
    detail: str


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The checkpoint is durable and recorded."""

    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    """The coordinator aborted the checkpoint."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class FeedbackReplayed:
    """The next records of a restored log, at the head of a loop. The log precedes all messages of channels."""

    records: Records


@dataclass(frozen=True, slots=True)
class FeedbackReplayEnded:
    """The restored log has been replayed."""


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
    """Every subtask runs. `resumed`: the attempt started from a checkpoint."""

    at: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Ticked:
    """The wake-up of a `WakeAt`, at its time or later."""

    at: int


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A savepoint, stop, drain or checkpoint is requested. `operation` identifies the request."""

    at: int
    kind: CheckpointKind
    operation: str


@dataclass(frozen=True, slots=True)
class IdIssued:
    """The requested id, greater than all earlier ids."""

    at: int
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class IdUnavailable:
    """The request for an id failed."""

    at: int
    detail: str


@dataclass(frozen=True, slots=True)
class TriggerFailed:
    """The host raised an error while it triggered a checkpoint."""

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
    """The manifest could not be stored or recorded, and is known not to be recorded."""

    at: int
    checkpoint: CheckpointId
    detail: str


@dataclass(frozen=True, slots=True)
class CoordinatorSuspended:
    """The attempt ends (failure, cancel, release): every pending checkpoint and queued request is aborted."""

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
