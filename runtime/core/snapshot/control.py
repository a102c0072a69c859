"""Facts that subtasks and coordinator exchange: an effect of the sender, a control message, an event of the receiver.

A fact travels unchanged. On the control connection its class name is the tag.
"""

import msgspec

from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId
from runtime.core.job.messages import Barrier
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot


class ControlMessage(msgspec.Struct, frozen=True, tag=True):
    """A message between master and slot."""


# ---------------------------------------------------------------- to a subtask


class TriggerSubtask(ControlMessage, frozen=True):
    """Inject the barrier at this subtask."""

    subtask: SubtaskId
    barrier: Barrier


class CheckpointAborted(ControlMessage, frozen=True):
    """The coordinator aborted the checkpoint."""

    checkpoint: CheckpointId


class ProbeSideOpened(ControlMessage, frozen=True):
    """Every subtask of `join` has read its build side: operators that lead to its probe side may emit."""

    join: OperatorId


class LiveOpened(ControlMessage, frozen=True):
    """Every subtask of `source` has read its share of the history: all begin the live part."""

    source: OperatorId


class FollowWatermark(ControlMessage, frozen=True):
    """An idle source subtask raises its watermark, once it has looked for new splits (`core.subtask.idle_sources`).

    `discoveries`: how often the subtasks of the source had found new splits when `watermark` was reported.
    """

    subtask: SubtaskId
    watermark: int
    discoveries: int


# ---------------------------------------------------------------- reports of a subtask


class Acknowledgement(ControlMessage, frozen=True):
    """The subtask's snapshot is durable."""

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    timings: SnapshotTimings


class Decline(ControlMessage, frozen=True):
    """The subtask cannot take part, or its snapshot could not be stored: the next snapshot contains the state."""

    checkpoint: CheckpointId
    reason: FailureReason
    detail: str


SnapshotAnswer = Acknowledgement | Decline


class LogicFinished(ControlMessage, frozen=True):
    """The subtask has sent EndOfData and waits for its last checkpoint."""


class SubtaskEnded(ControlMessage, frozen=True):
    """The subtask has sent EndOfPartition and closed."""


class BuildSideRead(ControlMessage, frozen=True):
    """The subtask of a join holds its whole build side."""


class HistoryRead(ControlMessage, frozen=True):
    """The subtask of a source with two parts has read its share of the first (`core.subtask.source_parts`)."""


class SourceReport(ControlMessage, frozen=True):
    """Event time of a source subtask. `discoveries`: how often it has found new splits."""

    watermark: int
    is_idle: bool
    discoveries: int


CoordinatorReport = SnapshotAnswer | LogicFinished | SubtaskEnded
SubtaskReport = CoordinatorReport | BuildSideRead | HistoryRead | SourceReport
