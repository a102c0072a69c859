"""Acceptance of operations. The row is written first; its effects follow after the commit.

Pages and API both call `request`. The class of the operation decides whether it is legal, and what the request does. A
supervisor claims new runs; the run's master carries out savepoints, stops, drains and cancels.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec
from django.db import IntegrityError, transaction

from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField, Refused
from console.accounts.rights import require_operate
from console.jobs.changes import MAX_REASON_LENGTH
from console.jobs.models import Job
from console.jobs.services import lock_job
from console.jobs.tags import require_match
from console.operations.job_state import with_blockers
from console.operations.labels import require_text
from console.operations.maintenance import require_no_maintenance
from console.operations.models import Operation, OperationKind
from console.operations.registry import operation_type, requested_type

MAX_KEY_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequestContext:
    """The user of a request, and the keys that identify a repetition."""

    user: User
    reason: str = ""
    request_id: str = ""
    idempotency_key: str | None = None
    if_match: str | None = None  #: the `If-Match` header; the job must still have this entity tag


@dataclass(frozen=True, slots=True)
class AcceptedOperation:
    """An accepted operation. `replayed`: an earlier request with the same idempotency key created it."""

    operation: Operation
    replayed: bool = False


def request(
    context: OperationRequestContext, job: Job, kind: str, params: dict[str, Any] | None = None
) -> AcceptedOperation:
    """Accepts a request as an operation row, or refuses it.

    Raises:
        Refused: not permitted, malformed, or not possible.
        Conflict: not possible in the present state of the job.
    """
    operation, params = requested_type(context.user, kind), params or {}
    typed = operation.parse(params)
    check_texts(context)
    row = Operation(
        job=job, kind=operation.kind.value, params=params, requested_by=context.user, reason=context.reason,
        request_id=context.request_id, idempotency_key=context.idempotency_key,
        body_hash=_body_hash(job, operation.kind, params),
    )  # fmt: skip
    if earlier := _replay(row):
        return earlier
    require_no_maintenance(operation)
    try:
        with operation.prepare(row, typed) as ready, transaction.atomic():
            if context.if_match is not None:
                lock_job(job)
                require_match(job, context.if_match)
            accepted = AcceptedOperation(operation.accept(row, ready))
            require_no_maintenance(operation)  # it may have begun while the request waited for the lock of the job
            return accepted
    except (IntegrityError, Refused) as error:
        # A concurrent request was first: with the same key, with another run, or with another stop or drain.
        if earlier := _replay(row):
            return earlier
        if isinstance(error, Refused):
            raise
        raise with_blockers(job, Conflict("conflict", "A concurrent request was accepted first.")) from None


def withdraw_operation(user: User, row: Operation) -> None:
    """Ends an operation as failed. The worker of work that is under way ends it soon.

    Raises:
        Conflict: the operation has begun or ended, or is of a kind that cannot be withdrawn.
    """
    require_operate(user)
    operation_type(row.kind).on_withdrawal(user, row)


def _replay(row: Operation) -> AcceptedOperation | None:
    """The operation that this user created earlier with the same idempotency key."""
    if row.idempotency_key is None:
        return None
    same_key = Operation.objects.filter(requested_by=row.requested_by, idempotency_key=row.idempotency_key)
    operation = same_key.first()
    if operation is None:
        return None
    if operation.body_hash != row.body_hash:
        detail = f"This idempotency key was used for another request, operation {operation.pk}."
        raise Refused("idempotency-key-reused", detail, operation=str(operation.pk))
    return AcceptedOperation(operation, replayed=True)


def check_key(key: str | None) -> None:
    """Raises InvalidField for an idempotency key that cannot be stored."""
    if key is not None and not (0 < len(key) <= MAX_KEY_LENGTH and key.isprintable()):
        raise InvalidField("Idempotency-Key", f"must be 1 to {MAX_KEY_LENGTH} printable characters")


def check_texts(context: OperationRequestContext) -> None:
    """Raises InvalidField for an idempotency key or a reason that cannot be stored."""
    check_key(context.idempotency_key)
    require_text(context.reason, "reason", MAX_REASON_LENGTH)


def _body_hash(job: Job, kind: OperationKind, params: dict[str, Any]) -> str:
    body = msgspec.json.encode([job.pk, kind.value, params], order="deterministic")
    return hashlib.sha256(body).hexdigest()
