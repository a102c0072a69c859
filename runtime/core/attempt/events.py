"""Events of the attempt, in the past tense. `at` is in milliseconds, by a clock that does not jump within the attempt.

Answers for the coordinator are events of the attempt as they are.
"""

from dataclasses import dataclass

from runtime.core.attempt.result import AttemptFailed
from runtime.core.checkpoint.events import (
    IdIssued,
    IdUnavailable,
    ManifestFailed,
    ManifestRecorded,
    Ticked,
    TriggerFailed,
)
from runtime.core.job.ids import SubtaskId, Token
from runtime.core.snapshot.control import SubtaskReport
from runtime.core.snapshot.row_numbers import ProcessedRows


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """A requested operation on the run. `kind`: "savepoint", "stop", "drain" or "cancel".

    `request_id`: of the HTTP request that asked for it, for the log; "" if there is none.
    """

    id: str
    kind: str
    request_id: str = ""

    @property
    def log_fields(self) -> dict[str, str]:
        fields = {"operation": self.id, "kind": self.kind}
        return {**fields, "request_id": self.request_id} if self.request_id else fields


# ---------------------------------------------------------------- slots


@dataclass(frozen=True, slots=True)
class SlotConnected:
    """A slot has opened its control connection.

    Args:
        log: file and host of its log; "" if it has none.
        kept_since: token of the attempt that deployed a kept slot; None: the slot has no subtasks yet.
    """

    at: int
    slot: int
    address: str
    log: str = ""
    kept_since: Token | None = None


@dataclass(frozen=True, slots=True)
class SlotRetired:
    """The answer to `RetireSubtasks`.

    Args:
        address: of the slot's new exchange.
        processed: rows that its surviving subtasks have processed.
        ended: surviving subtasks whose restarted inputs have ended; "": none.
    """

    at: int
    slot: int
    address: str
    processed: tuple[ProcessedRows, ...] = ()
    ended: str = ""


@dataclass(frozen=True, slots=True)
class ChannelLost:
    """A slot has lost a channel to or from slot `peer`, which may have failed."""

    at: int
    slot: int
    peer: int
    detail: str


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """A heartbeat of a slot has arrived."""

    at: int
    slot: int


@dataclass(frozen=True, slots=True)
class SlotDeployed:
    """Every subtask of the slot is open."""

    at: int
    slot: int


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """A report of a subtask has arrived."""

    at: int
    subtask: SubtaskId
    report: SubtaskReport


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The control connection of a slot has ended."""

    at: int
    slot: int
    detail: str


# ---------------------------------------------------------------- the run and its records


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """Code of the job failed in a slot, or the slots' processes or work of the master failed."""

    at: int
    failure: AttemptFailed


@dataclass(frozen=True, slots=True)
class OperationsWaiting:
    """Operations may have been requested."""

    at: int


@dataclass(frozen=True, slots=True)
class OperationsTaken:
    """The answer to `TakeOperations`, oldest first; empty if the database is unavailable.

    Operations that were taken before and are not completed may be among them.
    """

    at: int
    operations: tuple[OperationRequest, ...]


@dataclass(frozen=True, slots=True)
class BacklogMeasured:
    """The answer to `MeasureBacklog`: whether too many epochs await delivery."""

    at: int
    is_too_large: bool


@dataclass(frozen=True, slots=True)
class MetadataHung:
    """A write of metadata, or a commit by the master, does not return."""

    at: int


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """The worker shuts down."""

    at: int


@dataclass(frozen=True, slots=True)
class AttemptSuperseded:
    """A write was refused, because a newer attempt exists."""

    at: int


@dataclass(frozen=True, slots=True)
class ShutDownCompleted:
    """The answer to `ShutDown`: no event of a slot or of a write follows."""

    at: int


AttemptEvent = (
    SlotConnected
    | SlotRetired
    | ChannelLost
    | HeartbeatReceived
    | SlotDeployed
    | ReportReceived
    | SlotLost
    | WorkFailed
    | OperationsWaiting
    | OperationsTaken
    | BacklogMeasured
    | MetadataHung
    | ReleaseRequested
    | AttemptSuperseded
    | ShutDownCompleted
    | Ticked
    | TriggerFailed
    | IdIssued
    | IdUnavailable
    | ManifestRecorded
    | ManifestFailed
)
