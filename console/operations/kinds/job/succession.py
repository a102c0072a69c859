"""Operations that end a run and then restore a snapshot: each part is an operation of its own.

A rescale restores the savepoint of its stop; a rollback restores the snapshot that the user chose. Both are complete
when the restored run is running. Each pass reads the rows alone, so a console that dies between two steps continues
with the next pass.
"""

from http import HTTPStatus
from typing import Any, ClassVar

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint, Kind, Status
from console.checkpoints.operation_codes import WITHDRAWN
from console.checkpoints.timed_reads import load_manifest_in_time
from console.jobs.models import Run
from console.operations.holds import release
from console.operations.kinds.job.delegated import DelegatedOperation
from console.operations.kinds.job.restore import Restore
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from console.operations.operation_type import JobOperation
from console.operations.params import RestoreParams
from console.operations.registry import operation_type
from console.operations.restores.origin import find_checkpoint, require_restorable_row

log = structlog.get_logger(__name__)


class Succession(JobOperation):
    """Args:
    ending_param: parameter that is about the run that has ended, and no parameter of the restore.
    """

    blocked_by_maintenance = True
    due = Q()
    ending_param: ClassVar[str]

    def advance(self, row: Operation) -> None:
        """Takes the operation as far as its parts have come."""
        newest = row.parts.order_by("-created_at").first()
        assert newest is not None, "it is written with its first part"
        if newest.is_active:
            phase = f"{newest.kind}: {newest.phase}" if newest.phase else newest.kind
            if phase != row.phase:
                Operation.objects.filter(pk=row.pk).update(phase=phase)
        elif newest.kind != OperationKind.RESTORE and (
            newest.state == OperationState.SUCCEEDED or self.goes_on_after(row.run)
        ):
            self._restore(row)
        elif newest.state == OperationState.SUCCEEDED:
            end(row, OperationState.SUCCEEDED, result={"run": newest.run_id})
        else:
            end(row, OperationState(newest.state), error=newest.error)

    def goes_on_after(self, run: Run | None) -> bool:
        """Whether the restore follows although the operation that was to end `run` did not succeed."""
        return False

    def _restore(self, row: Operation) -> None:
        """Requests the restore. A run that ended without a savepoint, or a refused restore, fails the whole.

        If storage is unreachable or hangs, the next pass retries.
        """
        savepoint = Checkpoint.objects.filter(run=row.run, kind=Kind.STOP, status=Status.COMPLETED).first()
        checkpoint_id = row.params.get("checkpoint") or (savepoint.pk if savepoint else None)
        if checkpoint_id is None:
            why = "no savepoint of it is on record: restore its newest checkpoint."
            error = {"code": "no-savepoint", "message": f"Run {row.run_id} has stopped, and {why}"}
            end(row, OperationState.FAILED, error=error)
            return
        restore_params = {name: value for name, value in row.params.items() if name != self.ending_param}
        params, restore = restore_params | {"checkpoint": checkpoint_id}, Restore()
        try:
            snapshot = find_checkpoint(checkpoint_id)
            require_restorable_row(row.job, snapshot)
            manifest = load_manifest_in_time(snapshot)
            with transaction.atomic():
                restore.accept(restore.part_of(row, **params), RestoreParams(**params), manifest)
        except Refused as refused:
            if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
                log.warning("a snapshot is not restored yet", operation=str(row.pk), error=str(refused.__cause__))
                Operation.objects.filter(pk=row.pk).update(phase=f"waiting for storage: {refused.__cause__}")
                return
            changed = "its effects are no longer those that were shown."
            _end_unrestored(row, savepoint, refused.code, changed if refused.code == "plan-changed" else refused.detail)
        except IntegrityError:
            _end_unrestored(row, savepoint, "run-active", "Another run was started meanwhile.")

    def withdrawal_refusal(self, row: Operation) -> str:
        if not row.is_active:
            return f"The {row.kind} has ended: it is {row.state}."
        if row.parts.filter(kind=OperationKind.RESTORE).exists():
            return f"The {row.kind} has begun the restore: cancel the new run instead."
        return ""

    def withdrawal_effect(self, row: Operation) -> str:
        ending = row.parts.filter(state__in=ACTIVE_STATES).first()
        if ending is None:
            return f"Run {row.run_id} has ended: the job stays stopped, and nothing is restored."
        effect = f"The {ending.kind} of run {row.run_id} goes on, and nothing is restored after it."
        keeps = not operation_type(ending.kind).withdrawal_refusal(ending)
        return f"{effect} To keep the run, withdraw the {ending.kind} instead." if keeps else effect

    def on_withdrawal(self, user: User, row: Operation) -> None:
        """Ends the operation before its restore. The lock is that of the passes which request the restore."""
        with transaction.atomic():
            locked = Operation.objects.select_for_update(no_key=True).get(pk=row.pk)
            if refused := self.withdrawal_refusal(locked):
                raise Conflict("cannot-withdraw", refused)
            is_ending = locked.parts.filter(state__in=ACTIVE_STATES).exists()
            when, outcome = ("before", "Its end goes on") if is_ending else ("after", "The job stays stopped")
            message = (
                f"{user} withdrew the {row.kind} {when} run {row.run_id} had ended. {outcome}, and nothing is restored."
            )
            end(locked, OperationState.FAILED, error={"code": WITHDRAWN, "message": message})


def end_run(row: Operation, run: Run, ending: DelegatedOperation, **resolved: Any) -> Operation:
    """Writes a rescale or rollback with its first part, which ends the run."""
    row.run, row.state, row.started_at = run, OperationState.RUNNING.value, Now()
    row.phase = ending.act.value
    row.params = {**row.params, **resolved}
    row.save(force_insert=True)
    ending.delegate(ending.part_of(row), run.pk)
    row.refresh_from_db()
    return row


def _end_unrestored(row: Operation, savepoint: Checkpoint | None, code: str, why: str) -> None:
    snapshot = Checkpoint.objects.filter(pk=row.params.get("checkpoint")).first()
    ended = f"Run {row.run_id} has {f'stopped with {savepoint}' if savepoint else 'ended'}"
    message = f"{ended}, {f'and {snapshot}' if snapshot else 'which'} was not restored: {why}"
    end(row, OperationState.FAILED, error={"code": code, "message": message})


def end(row: Operation, state: OperationState, **facts: object) -> None:
    """Ends a rescale or rollback, and releases the snapshot that it holds."""
    Operation.objects.filter(pk=row.pk).update(state=state, phase="", ended_at=Now(), **facts)
    release(row)
