"""Events of the coordinator, in the past tense: time, ids and acknowledgements. `at` is in milliseconds."""

from dataclasses import dataclass

from runtime.core.job.ids import CheckpointId, SubtaskId
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.control import CoordinatorReport


@dataclass(frozen=True, slots=True)
class JobStarted:
    """Every subtask runs.

    `resumed`: the attempt started from a checkpoint, or at offsets that no checkpoint has yet. Its first checkpoint
    begins soon.
    """

    at: int
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Ticked:
    """The wake-up of a `WakeAt`, at its time or later."""

    at: int


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A savepoint, stop, drain or checkpoint is requested. `operation`: the user's request; None: periodic."""

    at: int
    kind: CheckpointKind
    operation: str | None = None
    #: planned anew, since a subtask had ended; for a stop or drain some subtasks may have finished their logic already
    is_replanned: bool = False

    @property
    def is_periodic(self) -> bool:
        return self.operation is None


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
class SubtaskReported:
    """A report of a subtask has arrived."""

    at: int
    subtask: SubtaskId
    report: CoordinatorReport


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
    | SubtaskReported
    | ManifestRecorded
    | ManifestFailed
    | CoordinatorSuspended
)
