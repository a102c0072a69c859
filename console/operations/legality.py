"""Decides which operations are legal now, and why others are refused, for the buttons, the API and the services.

A refusal is a `Conflict`: its `detail` appears beside a disabled button, and its `code` is for programs. The class of
each kind has the rule. `console.operations.restores.effects` decides whether a checkpoint fits a version.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from console.accounts.refusals import Conflict, Refused
from console.accounts.rights import AnyUser
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, Run
from console.operations.job_state import JobState
from console.operations.maintenance import maintenance_conflict, shown_maintenance
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import JobOperation, SnapshotOperation
from console.operations.registry import operation_of, operation_type, types_of


@dataclass(frozen=True, slots=True)
class AllowedOperation:
    """An operation on a job or checkpoint. `reason`: why the operation is not possible now; "" if it is possible."""

    act: OperationKind
    reason: str

    @property
    def enabled(self) -> bool:
        return not self.reason


def allowed_operations(
    job: Job, run: Run | None, user: AnyUser, active: Sequence[Operation] | None = None
) -> tuple[AllowedOperation, ...]:
    """Every operation on a job. `run` is the latest run.

    `active`: the active operations on the job; read if they are not given.
    """
    state = JobState(job, run, active)
    return tuple(_allowed_on_job(operation, state, user) for operation in types_of(JobOperation))


def allowed_operation(
    kind: OperationKind, job: Job, run: Run | None, user: AnyUser, active: Sequence[Operation] | None = None
) -> AllowedOperation:
    """An operation on a job. `run` and `active`: as in `allowed_operations`."""
    return _allowed_on_job(operation_of(JobOperation, kind), JobState(job, run, active), user)


def allowed_on(checkpoint: Checkpoint, kind: OperationKind, user: AnyUser) -> AllowedOperation:
    """An operation on a checkpoint or savepoint."""
    try:
        reason = request_refusal(kind, user) or _sentence(operation_of(SnapshotOperation, kind).conflict(checkpoint))
    except Refused as refused:
        reason = refused.detail
    return AllowedOperation(kind, reason)


def allowed_pin(checkpoint: Checkpoint, user: AnyUser) -> AllowedOperation:
    """The pin of a checkpoint, or its unpin if it is pinned."""
    return allowed_on(checkpoint, OperationKind.UNPIN if checkpoint.is_pinned else OperationKind.PIN, user)


def request_refusal(kind: str, user: AnyUser) -> str:
    """Why the user may not request operations of this kind now, on any job."""
    operation = operation_type(kind)
    return operation.right_refusal(user) or _sentence(maintenance_conflict(operation, shown_maintenance()))


def _allowed_on_job(operation: JobOperation, state: JobState, user: AnyUser) -> AllowedOperation:
    refused = request_refusal(operation.kind, user)
    return AllowedOperation(operation.kind, refused or _sentence(operation.conflict(state)))


def _sentence(conflict: Conflict | None) -> str:
    return conflict.detail if conflict else ""
