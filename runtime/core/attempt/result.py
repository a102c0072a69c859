"""The result of an attempt, or of a wait between two attempts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.core.job.ids import OperatorId, Token
from runtime.core.snapshot.manifest import Manifest
from runtime.errors import CorruptState, DataRejected, JobRejected, WeirError, is_outage, operator_of


@dataclass(frozen=True, slots=True)
class Ended:
    """Every subtask has ended. `savepoint`: of a completed stop or drain."""

    savepoint: Manifest | None = None


@dataclass(frozen=True, slots=True)
class SavepointCompleted:
    """The savepoint of a stop or drain is recorded, but not every subtask has ended."""

    savepoint: Manifest


@dataclass(frozen=True, slots=True)
class Canceled:
    """A user has canceled the run."""


@dataclass(frozen=True, slots=True)
class Released:
    """The worker shuts down: another worker may claim the run."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer attempt exists."""


@dataclass(frozen=True, slots=True)
class LauncherBroken:
    """This process can start no more slots."""

    detail: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt failed. The restart strategy, or the policy for damaged checkpoints, decides on another attempt."""

    detail: str
    operator: str = ""
    is_final: bool = False  #: a retry cannot help
    events: tuple[str, ...] = ()
    has_progressed: bool = False  #: completed a checkpoint
    ran_ms: int = 0  #: milliseconds since all subtasks were running
    damaged_file: str = ""  #: file of the checkpoint to restore that is missing or altered
    fingerprint: str = ""  #: fingerprint of a programming error: equal for the same code at the same record
    is_outage: bool = False  #: storage or a service is unavailable: waited out, and no restart is counted
    code: str = ""  #: stable failure code; may be empty
    lost_slot: int | None = None  #: slot whose process is gone, hangs or must not run another slot
    slot: int | None = None  #: slot that failed
    slot_log: str = ""  #: log of a lost slot; the next attempt has another process, so nothing else names it
    traceback: str = ""  #: Python traceback of the failure in that slot
    #: the slots that run on until the next attempt, with the token of the attempt that deployed each
    kept: Mapping[int, Token] = field(default_factory=dict)
    restarted: tuple[OperatorId, ...] = ()  #: the operators that restart in these slots, too


AttemptResult = Ended | SavepointCompleted | Canceled | Released | Superseded | LauncherBroken | AttemptFailed


def master_failure(error: Exception, context: str = "") -> AttemptFailed:
    """An attempt that fails by an error of the master's own work."""
    detail, operator = f"{context}{error}", operator_of(error)
    if isinstance(error, JobRejected):
        return AttemptFailed(detail, operator, is_final=True, code=error.code)
    if isinstance(error, DataRejected):  # of a commit: the target refuses rows
        return AttemptFailed(detail, operator, is_final=True)
    if isinstance(error, CorruptState):
        return AttemptFailed(detail, operator, damaged_file=error.file)
    if not isinstance(error, WeirError | OSError):  # its text alone may be a bare value
        detail = f"{context}{type(error).__name__}: {error}"
    return AttemptFailed(detail, operator, is_outage=is_outage(error))
