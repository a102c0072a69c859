"""Effects of the attempt, in the imperative. The master performs them in order before the next event.

Most effects of the coordinator are effects of the attempt as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.core.attempt.events import OperationRequest
from runtime.core.attempt.failover_regions import RestartScope
from runtime.core.attempt.result import AttemptResult
from runtime.core.checkpoint.effects import (
    CompleteOperation,
    IssueId,
    LateAnswer,
    NotifyAborted,
    NotifyCompleted,
    ReportCheckpoint,
    StoreManifest,
)
from runtime.core.job.ids import CheckpointId, OperatorId
from runtime.core.job.lifecycle import RunEvent
from runtime.core.snapshot.control import FollowWatermark, LiveOpened, ProbeSideOpened, TriggerSubtask
from runtime.core.snapshot.row_numbers import ProcessedRows


@dataclass(frozen=True, slots=True)
class DeploySlots:
    """Deploy the subtasks: every slot is connected.

    Args:
        addresses: of the slots, by index.
        kept: the slots whose subtasks run on.
        scope: the subtasks that restart, in the other slots.
        processed: rows that surviving subtasks of these slots have processed.
    """

    addresses: Mapping[int, str]
    kept: frozenset[int] = frozenset()
    scope: RestartScope | None = None  #: None: all subtasks
    processed: tuple[ProcessedRows, ...] = ()


@dataclass(frozen=True, slots=True)
class RetireSubtasks:
    """Close the subtasks of `operators` in the kept slots `slots`; answer SlotRetired for each slot."""

    slots: frozenset[int]
    operators: tuple[OperatorId, ...]


@dataclass(frozen=True, slots=True)
class StartSubtasks:
    """Start the subtasks: every slot is deployed."""


@dataclass(frozen=True, slots=True)
class PauseSources:
    """Pause or resume the sources. Barriers pass: checkpoints without rows do not add to the backlog."""

    paused: bool


@dataclass(frozen=True, slots=True)
class MeasureBacklog:
    """Measure how many committed epochs await delivery; answer BacklogMeasured."""


@dataclass(frozen=True, slots=True)
class ChangeState:
    """Apply the event to the state of the run. Answer AttemptSuperseded if a newer attempt exists."""

    event: RunEvent


@dataclass(frozen=True, slots=True)
class TakeOperations:
    """Take the requested operations; answer OperationsTaken, or AttemptSuperseded."""

    only_cancel: bool


@dataclass(frozen=True, slots=True)
class AnnounceOperation:
    """Log the operation in the master and the slots: it begins."""

    request: OperationRequest


@dataclass(frozen=True, slots=True)
class DeferOperation:
    """Leave the operation open.

    With a `checkpoint`, its savepoint, the end of the run completes it. Otherwise the next attempt takes it again.
    """

    operation: str
    checkpoint: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class ShutDown:
    """End the slots and finish queued writes; answer ShutDownCompleted."""

    result: AttemptResult


@dataclass(frozen=True, slots=True)
class End:
    """The attempt is over."""

    result: AttemptResult


#: Work of the thread that writes metadata, in order. The attempt goes on meanwhile.
MetadataEffect = (
    IssueId
    | StoreManifest
    | ReportCheckpoint
    | ChangeState
    | TakeOperations
    | CompleteOperation
    | DeferOperation
    | MeasureBacklog
)

AttemptEffect = (
    DeploySlots
    | RetireSubtasks
    | StartSubtasks
    | TriggerSubtask
    | NotifyCompleted
    | NotifyAborted
    | FollowWatermark
    | ProbeSideOpened
    | LiveOpened
    | PauseSources
    | AnnounceOperation
    | LateAnswer
    | MetadataEffect
    | ShutDown
    | End
)
