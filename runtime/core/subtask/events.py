"""Events of a subtask: the only way in which time, records and the outcome of I/O reach its machine."""

from dataclasses import dataclass

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Barrier, Message, Records
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import (
    Acknowledgement,
    CheckpointAborted,
    Decline,
    FollowWatermark,
    ProbeSideOpened,
)


@dataclass(frozen=True, slots=True)
class SubtaskStarted:
    """The operator is open and its state is restored; messages may arrive from now on."""


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """The next message of a channel that is readable (`Subtask.is_readable`)."""

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
    """The coordinator injects `barrier` at this subtask: a source, or all its predecessors have ended."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The checkpoint is durable and recorded."""

    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class FeedbackReplayed:
    """The next records of a restored log, at the head of a loop. The log precedes all messages of channels."""

    records: Records


@dataclass(frozen=True, slots=True)
class FeedbackReplayEnded:
    """The restored log has been replayed."""


SubtaskEvent = (
    SubtaskStarted
    | FeedbackReplayed
    | FeedbackReplayEnded
    | MessageArrived
    | SourceAdvanced
    | SourceIdle
    | SourceResumed
    | SourceExhausted
    | Triggered
    | CheckpointCompleted
    | Acknowledgement
    | Decline
    | CheckpointAborted
    | ProbeSideOpened
    | FollowWatermark
)
