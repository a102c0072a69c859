"""Acceptance of operations. The row is written first; its effects follow after the commit.

Pages and API both call `request`. `console.operations.legality` decides whether an operation is legal. A supervisor
claims new runs; the run's master carries out all other operations.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField, Refused
from console.accounts.rights import require_operate
from console.checkpoints.timed_reads import require_target_in_time
from console.jobs.changes import MAX_REASON_LENGTH
from console.jobs.models import Job, Run, VersionState
from console.jobs.services import lock_job, require_present
from console.jobs.tags import require_match
from console.operations import clones, copies, discard, drill_starts, labels, reviews, schedules, verification
from console.operations.holds import hold
from console.operations.legality import ending_operations, run_conflict, start_conflict
from console.operations.maintenance import active_maintenance, maintenance_conflict
from console.operations.models import ACTIVE_STATES, REVIEW_OPERATIONS, Operation, OperationKind, OperationState
from console.operations.new_runs import accept_waiting, awaited_version, new_run, new_run_target
from console.operations.origin import Origin
from console.operations.params import (
    RescaleParams,
    RestoreParams,
    RollbackParams,
    RunParams,
    SavepointParams,
    StartParams,
    parse_kind,
    parse_params,
)
from console.operations.rescale_plan import rescale_target
from console.operations.restore import require_no_repetition, require_restorable
from console.runs import run_store
from console.runs.selectors import latest_run
from runtime.core.job.lifecycle import RunAct
from runtime.core.snapshot.manifest import Manifest

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
    asked: OperationRequestContext, job: Job, kind: str, params: dict[str, Any] | None = None
) -> AcceptedOperation:
    """Accepts a request as an operation row, or refuses it.

    Raises:
        Refused: not permitted, malformed, or not possible.
        Conflict: not possible in the present state of the job.
    """
    require_operate(asked.user, is_review=kind in REVIEW_OPERATIONS)
    wanted = parse_kind(kind)
    given = params or {}
    typed = parse_params(wanted, given)
    check_texts(asked)
    row = Operation(
        job=job, kind=wanted.value, params=given, requested_by=asked.user, reason=asked.reason,
        request_id=asked.request_id, idempotency_key=asked.idempotency_key, body_hash=_body_hash(job, wanted, given),
    )  # fmt: skip
    if earlier := _replay(row):
        return earlier
    _require_no_maintenance(wanted)
    try:
        with _prepare(row, typed) as ready, transaction.atomic():
            if asked.if_match is not None:
                lock_job(job)
                require_match(job, asked.if_match)
            accepted = AcceptedOperation(accept(row, ready))
            _require_no_maintenance(wanted)  # it may have begun while the request waited for the lock of the job
            return accepted
    except (IntegrityError, Refused) as error:
        # A concurrent request was first: with the same key, with another run, or with another stop or drain.
        if earlier := _replay(row):
            return earlier
        if isinstance(error, Refused):
            raise
        raise _name_blockers(job, Conflict("conflict", "A concurrent request was accepted first.")) from None


def _prepare(row: Operation, typed: Any) -> AbstractContextManager[Any]:
    """The parameters for `accept`. A clone writes its files before the transaction, so that no row is locked meanwhile.

    Raises:
        Refused: as `request`.
    """
    return clones.prepared_clone(row, typed) if row.kind == OperationKind.CLONE else nullcontext(typed)


def _require_no_maintenance(kind: OperationKind) -> None:
    if refused := maintenance_conflict(kind, active_maintenance()):
        raise refused


def accept(row: Operation, typed: Any) -> Operation:
    """Writes `row` with the effects of its parameters. Call it inside a transaction.

    Raises:
        Refused: as `request`, of which this is the part behind the checks of the user.
    """
    return _ACCEPT[OperationKind(row.kind)](row, typed)


def accept_restore(row: Operation, wanted: RestoreParams, manifest: Manifest | None = None) -> Operation:
    """As `accept`, for a restore. `manifest`: that of the checkpoint, if the caller has read it."""
    lock_job(row.job)  # the checkpoint must not be discarded meanwhile
    if row.part_of is not None:
        _require_latest(latest_run(row.job), row.part_of.run_id)
    version, parallelism = new_run_target(row.job, wanted)
    _require_startable(row.job)
    origin = Origin.from_params(row.job, wanted, manifest)
    kind = OperationKind(row.part_of.kind if row.part_of else row.kind)
    ends = latest_run(row.job) if kind is OperationKind.ROLLBACK else None
    require_restorable(row.job, origin, version, parallelism, wanted, kind=kind, ends=ends)
    if origin.path:
        run_store.reserve_ids_above(row.job, origin.manifest.checkpoint, origin.manifest.token)
    return new_run(
        row, version, parallelism, restore_checkpoint=origin.checkpoint, restore_path=origin.path,
        allow_unmapped=wanted.allow_unmapped,
    )  # fmt: skip


def _rescale(row: Operation, wanted: RescaleParams) -> Operation:
    """Stops the run with a savepoint; `console.operations.successions` restores that savepoint."""
    lock_job(row.job)
    try:
        run, version, parallelism = rescale_target(row.job, wanted)
    except Conflict as conflict:
        raise _name_blockers(row.job, conflict) from None
    return _end_run(row, run, RunAct.STOP, version=version.pk, parallelism=parallelism)


def _rollback(row: Operation, wanted: RollbackParams) -> Operation:
    """Ends the run; `console.operations.successions` then restores the chosen snapshot, which is held until the end.

    Files are read before the row of the job is locked, since the run takes checkpoints meanwhile.
    """
    run, act = latest_run(row.job), RunAct(wanted.end_run)
    if found := run_conflict(run, act, ending_operations(run)):
        raise _name_blockers(row.job, found)
    assert run is not None, "a job that never ran has a conflict"
    version, parallelism = new_run_target(row.job, wanted)
    origin = Origin.from_params(row.job, wanted)
    plan = require_restorable(row.job, origin, version, parallelism, wanted, ends=run)
    snapshot = origin.checkpoint
    assert snapshot is not None, "a rollback has no path"
    lock_job(row.job)
    hold(snapshot, row)
    return _end_run(row, run, act, version=version.pk, parallelism=parallelism, plan_hash=plan.plan_hash)


def _end_run(row: Operation, run: Run, act: RunAct, **resolved: Any) -> Operation:
    """Writes a rescale or rollback with its first part, which ends the run."""
    row.run, row.state, row.started_at = run, OperationState.RUNNING.value, Now()
    row.phase = act.value
    row.params = {**row.params, **resolved}
    row.save(force_insert=True)
    _delegate_to_master(part(row, OperationKind(act)), act, run.pk)
    row.refresh_from_db()
    return row


def _save(row: Operation, wanted: SavepointParams) -> Operation:
    """A savepoint, stop or drain."""
    labels.require_texts(wanted)
    if wanted.target is not None:
        _require_no_maintenance(OperationKind.COPY)
        require_target_in_time(wanted.target)
    accepted = _delegate_to_master(row, RunAct(row.kind), wanted.run)
    if wanted.target is not None:
        copies.queue_copy(part(accepted, OperationKind.COPY, target=wanted.target))
    return accepted


def _cancel(row: Operation, wanted: RunParams) -> Operation:
    return _delegate_to_master(row, RunAct.CANCEL, wanted.run)


def part(whole: Operation, kind: OperationKind, **params: Any) -> Operation:
    """An operation, not yet written, that belongs to `whole`."""
    return Operation(
        job=whole.job, kind=kind.value, params=params, part_of=whole, requested_by=whole.requested_by,
        reason=whole.reason, request_id=whole.request_id,
    )  # fmt: skip


def _start(row: Operation, wanted: StartParams) -> Operation:
    if awaited := awaited_version(row.job, wanted):
        if awaited.state == VersionState.COMPILING:
            _require_startable(row.job)
            return accept_waiting(row, awaited)
        wanted = msgspec.structs.replace(wanted, version=awaited.pk)
    version, parallelism = new_run_target(row.job, wanted)
    _require_startable(row.job)
    if not wanted.accept_repeated_output:
        require_no_repetition(row.job)
    return new_run(row, version, parallelism)


def _delegate_to_master(row: Operation, act: RunAct, wanted_run: int | None) -> Operation:
    """Leaves a savepoint, stop, drain or cancel to the run's master; a cancel of an unclaimed run ends at once.

    Raises:
        Conflict: the latest run is not `wanted_run`, or its state does not allow the act.
    """
    run = Run.objects.select_for_update(no_key=True).filter(job=row.job).order_by("-pk").first()
    _require_latest(run, wanted_run)
    if found := run_conflict(run, act, ending_operations(run)):
        raise _name_blockers(row.job, found)
    assert run is not None, "a job that never ran has a conflict"
    row.run = run
    if act is RunAct.CANCEL and run_store.cancel_in_queue(run.pk):
        row.state = OperationState.SUCCEEDED.value
        row.phase = "cancelled before it started"
        row.started_at = row.ended_at = Now()
    row.save(force_insert=True)
    if not row.is_active:
        row.refresh_from_db()  # reads the times that Postgres has set
    return row


_ACCEPT: Final[Mapping[OperationKind, Callable[[Operation, Any], Operation]]] = {
    OperationKind.START: _start,
    OperationKind.RESTORE: accept_restore,
    OperationKind.RESCALE: _rescale,
    OperationKind.ROLLBACK: _rollback,
    OperationKind.SAVEPOINT: _save,
    OperationKind.STOP: _save,
    OperationKind.DRAIN: _save,
    OperationKind.CANCEL: _cancel,
    OperationKind.DISCARD: discard.accept,
    OperationKind.PIN: labels.accept_pin,
    OperationKind.UNPIN: labels.accept_pin,
    OperationKind.LABEL: labels.accept_label,
    OperationKind.SCHEDULE: schedules.accept_schedule,
    OperationKind.UNSCHEDULE: schedules.accept_unschedule,
    OperationKind.CLONE: clones.accept_clone,
    OperationKind.DRILL: drill_starts.accept_drill,
    OperationKind.VERIFY: verification.accept_verify,
    OperationKind.COPY: copies.accept_copy,
    OperationKind.ASSIGN: reviews.accept_assign,
    OperationKind.COMMENT: reviews.accept_comment,
    OperationKind.REVIEW: reviews.accept_review,
}


def _require_latest(run: Run | None, wanted_run: int | None) -> None:
    """Raises Conflict if `run`, the latest of a job, is not the run of the request. None: the request names no run."""
    if run is not None and wanted_run not in (None, run.pk):
        detail = f"The request is for run {wanted_run}, but the latest run of the job is run {run.pk}."
        raise Conflict("run-changed", detail, "params.run", run=run.pk)


def _require_startable(job: Job) -> None:
    require_present(job)
    if found := start_conflict(latest_run(job)):
        raise _name_blockers(job, found)


def _name_blockers(job: Job, found: Conflict) -> Conflict:
    """`found` with the unfinished run and the newest active operation of the job, if there are any."""
    run, detail = latest_run(job), found.detail
    active = Operation.objects.filter(job=job, state__in=ACTIVE_STATES).order_by("-created_at").first()
    facts: dict[str, Any] = {}
    if run is not None and not run.is_terminal:
        facts["run"] = run.pk
    if active is not None:
        facts["operation"] = str(active.pk)
        detail = f"{detail} Operation {active.pk} ({active.kind}) is {active.state}."
    return Conflict(found.code, detail, found.field, **{**found.facts, **facts})


def _replay(row: Operation) -> AcceptedOperation | None:
    """The operation that this user created earlier with the same idempotency key."""
    if row.idempotency_key is None:
        return None
    same_key = Operation.objects.filter(requested_by=row.requested_by, idempotency_key=row.idempotency_key)
    found = same_key.first()
    if found is None:
        return None
    if found.body_hash != row.body_hash:
        detail = f"This idempotency key was used for another request, operation {found.pk}."
        raise Refused("idempotency-key-reused", detail, operation=str(found.pk))
    return AcceptedOperation(found, replayed=True)


def check_texts(asked: OperationRequestContext) -> None:
    """Raises InvalidField for an idempotency key or a reason that cannot be stored."""
    key = asked.idempotency_key
    if key is not None and not (0 < len(key) <= MAX_KEY_LENGTH and key.isprintable()):
        raise InvalidField("Idempotency-Key", f"must be 1 to {MAX_KEY_LENGTH} printable characters")
    labels.require_text(asked.reason, "reason", MAX_REASON_LENGTH)


def _body_hash(job: Job, kind: OperationKind, params: dict[str, Any]) -> str:
    body = msgspec.json.encode([job.pk, kind.value, params], order="deterministic")
    return hashlib.sha256(body).hexdigest()
