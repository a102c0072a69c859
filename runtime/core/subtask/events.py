"""Events of a subtask: the only way in which time, records and the outcome of I/O reach its machine."""

from dataclasses import dataclass

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Barrier, EndOfData, EndOfPartition, Message, Records, TerminationMarker
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import (
    CheckpointAborted,
    FollowWatermark,
    LiveOpened,
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
class MessageHeld:
    """The next message of a readable channel must not take effect yet: the operator still buffers rows.

    It is the end of the last open input, or the marker of a loop. Barriers behind it pass (`Subtask.passes_held`).
    """

    channel: ChannelId
    message: EndOfData | TerminationMarker


@dataclass(frozen=True, slots=True)
class HoldReleased:
    """The operator has emitted its buffered rows: the held messages take effect."""


@dataclass(frozen=True, slots=True)
class AlignmentTimedOut:
    """The barrier has waited for the alignment timeout; see `Subtask.may_overtake`."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class MessageOvertaken:
    """The next message of a channel on which rows are recorded (`Subtask.recorded_channels`).

    Records and the end of a channel stay in the queue of the channel and arrive later. A barrier does not.
    """

    channel: ChannelId
    message: Records | Barrier | EndOfPartition


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
class HistoryEnded:
    """A source with two parts has emitted all its records of the first."""


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
class InputsRestarted:
    """The senders of `channels` have restarted: messages in flight are lost, and the next ones repeat earlier ones."""

    channels: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class FeedbackReplayed:
    """The next records of a restored log, at the head of a loop. The log precedes all messages of channels."""

    records: Records


@dataclass(frozen=True, slots=True)
class RowsReplayed:
    """The next restored rows that were in flight on the edge of `channel`. They precede all messages of channels."""

    channel: ChannelId
    records: Records


@dataclass(frozen=True, slots=True)
class ReplayEnded:
    """All restored rows have been replayed."""


SubtaskEvent = (
    SubtaskStarted
    | FeedbackReplayed
    | RowsReplayed
    | ReplayEnded
    | InputsRestarted
    | MessageArrived
    | MessageHeld
    | HoldReleased
    | AlignmentTimedOut
    | MessageOvertaken
    | SourceAdvanced
    | SourceIdle
    | SourceResumed
    | SourceExhausted
    | Triggered
    | CheckpointCompleted
    | CheckpointAborted
    | ProbeSideOpened
    | HistoryEnded
    | LiveOpened
    | FollowWatermark
)
