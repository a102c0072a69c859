"""The course of a rescale or rollback: the end of the run, then a restore, each an operation of its own.

A rescale restores the savepoint of its stop; a rollback restores the snapshot that the user chose. Both are complete
when the restored run is running. Each pass reads the rows alone, so a console that dies between two steps continues
with the next pass.
"""

from http import HTTPStatus

import structlog
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint, Kind, Status
from console.checkpoints.timed_reads import load_manifest_in_time
from console.operations import services
from console.operations.holds import release
from console.operations.models import ACTIVE_STATES, SUCCESSION_KINDS, Operation, OperationKind, OperationState
from console.operations.origin import find_checkpoint, require_restorable_row
from console.operations.params import RestoreParams
from runtime.core.job.lifecycle import RunState

log = structlog.get_logger(__name__)

#: A rollback goes on if its run ended so, even if the run was ended by another cause than its stop or cancel.
_RESTORED_AFTER = (RunState.FAILED, RunState.STOPPED, RunState.CANCELED)


def advance_successions() -> None:
    """Takes every rescale and rollback under way as far as its parts have come."""
    for number in Operation.objects.filter(kind__in=SUCCESSION_KINDS, state__in=ACTIVE_STATES).values_list("pk"):
        with transaction.atomic():
            rows = Operation.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
            row = rows.select_related("job").filter(pk=number[0], state__in=ACTIVE_STATES).first()
            if row is not None:
                _advance(row)


def _advance(row: Operation) -> None:
    newest = row.parts.order_by("-created_at").first()
    assert newest is not None, "it is written with its first part"
    if newest.is_active:
        phase = f"{newest.kind}: {newest.phase}" if newest.phase else newest.kind
        if phase != row.phase:
            Operation.objects.filter(pk=row.pk).update(phase=phase)
    elif newest.kind != OperationKind.RESTORE and (newest.state == OperationState.SUCCEEDED or _has_ended(row)):
        _restore(row)
    elif newest.state == OperationState.SUCCEEDED:
        end(row, OperationState.SUCCEEDED, result={"run": newest.run_id})
    else:
        end(row, OperationState(newest.state), error=newest.error)


def _has_ended(row: Operation) -> bool:
    """Whether a rollback may restore although its stop or cancel did not succeed: the run ended before."""
    return row.kind == OperationKind.ROLLBACK and row.run is not None and row.run.run_state in _RESTORED_AFTER


def _restore(row: Operation) -> None:
    """Requests the restore. A run that ended without a savepoint, or a refused restore, fails the whole.

    If storage is unreachable or hangs, the next pass retries.
    """
    savepoint = Checkpoint.objects.filter(run=row.run, kind=Kind.STOP, status=Status.COMPLETED).first()
    chosen = row.params.get("checkpoint") or (savepoint.pk if savepoint else None)
    if chosen is None:
        message = f"Run {row.run_id} has stopped, and no savepoint of it is on record: restore its newest checkpoint."
        end(row, OperationState.FAILED, error={"code": "no-savepoint", "message": message})
        return
    own = "end_run" if row.kind == OperationKind.ROLLBACK else "plan_hash"  # of the run that has ended
    params = {name: value for name, value in row.params.items() if name != own} | {"checkpoint": chosen}
    try:
        snapshot = find_checkpoint(chosen)
        require_restorable_row(row.job, snapshot)
        manifest = load_manifest_in_time(snapshot)
        with transaction.atomic():
            part = services.part(row, OperationKind.RESTORE, **params)
            services.accept_restore(part, RestoreParams(**params), manifest)
    except Refused as refused:
        if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
            log.warning("a snapshot is not restored yet", operation=str(row.pk), error=str(refused.__cause__))
            Operation.objects.filter(pk=row.pk).update(phase=f"waiting for storage: {refused.__cause__}")
            return
        changed = "its effects are no longer those that were shown."
        _end_unrestored(row, savepoint, refused.code, changed if refused.code == "plan-changed" else refused.detail)
    except IntegrityError:
        _end_unrestored(row, savepoint, "run-active", "Another run was started meanwhile.")


def _end_unrestored(row: Operation, savepoint: Checkpoint | None, code: str, why: str) -> None:
    chosen = Checkpoint.objects.filter(pk=row.params.get("checkpoint")).first()
    ended = f"Run {row.run_id} has {f'stopped with {savepoint}' if savepoint else 'ended'}"
    message = f"{ended}, {f'and {chosen}' if chosen else 'which'} was not restored: {why}"
    end(row, OperationState.FAILED, error={"code": code, "message": message})


def end(row: Operation, state: OperationState, **facts: object) -> None:
    """Ends a rescale or rollback, and releases the snapshot that it holds."""
    Operation.objects.filter(pk=row.pk).update(state=state, phase="", ended_at=Now(), **facts)
    release(row)
