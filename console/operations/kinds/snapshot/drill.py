"""Restore drills: a snapshot is restored as a clone beside its job, measured until its first checkpoint, and removed.

A clone takes file work, so a request only writes the operation, which holds the snapshot until the clone has its files.
The operation of the drill is the evidence: its result has the measurements. Each pass reads the rows alone, so a
console that dies continues with the next pass.
"""

from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Min, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from console import formats
from console.accounts.refusals import Conflict, Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Status
from console.checkpoints.operation_codes import DRILL_CANCELED, DRILL_WITHOUT_SLOTS
from console.jobs.models import Job, Run
from console.jobs.services import lock_job
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics
from console.operations.console_work import ConsoleWork, WorkWithdrawn
from console.operations.holds import hold, release
from console.operations.kinds.snapshot.clone import RestoreBeside
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from console.operations.operation_type import save_queued
from console.operations.params import CloneParams, RunParams
from console.operations.registry import operation_type
from console.operations.restores.clones import clone_target, create_clone, prepared_clone
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState
from runtime.errors import EnvironmentFailure

LIMIT: Final = timedelta(minutes=30)  #: for the storage to become usable, then for the clone's first checkpoint
MEASURED: Final = "first_checkpoint_ms"  #: in the result of a drill from its clone's first checkpoint on

_LIMIT_MS: Final = LIMIT.total_seconds() * 1000

log = structlog.get_logger(__name__)


class Drill(ConsoleWork, RestoreBeside):
    kind = OperationKind.DRILL
    message = "The restore drill was requested."
    noun = "restore drill"
    effect_before = "No clone is created."
    effect_during = "The clone is cancelled and its files are deleted. The drill proves nothing."
    due = Q(started_at__isnull=False)
    files_due = Q()

    def conflict(self, checkpoint: Checkpoint) -> Conflict | None:
        return super().conflict(checkpoint) or _active_conflict(checkpoint.job)

    def accept(self, row: Operation, params: CloneParams) -> Operation:
        """Queues the drill for a worker of the console.

        Raises:
            Refused: as `clone_target`.
            Conflict: another drill of the job has not ended, or another operation holds the snapshot.
        """
        lock_job(row.job)
        if conflict := _active_conflict(row.job):
            raise conflict
        _, _, snapshot = clone_target(row.job, params)
        hold(snapshot, row)
        return save_queued(row, "waiting for a worker")

    def advance(self, row: Operation) -> None:
        """Takes the drill as far as its clone has come."""
        assert row.started_at is not None, "due"
        result: dict[str, Any] = row.result or {}
        run = Run.objects.select_related("job").get(pk=result["run"])
        first = Checkpoint.objects.filter(run=run, status=Status.COMPLETED).order_by("number").first()
        if first is not None and MEASURED not in result:
            row.result = result = {**result, **_measurements(run, first)}
        if run.is_terminal:
            _archive(row, run)
        elif first is not None or row.error is not None or timezone.now() - row.started_at > LIMIT:
            if first is None and row.error is None:
                row.error = _limit_error(run)
            row.phase = "ending the clone"
            _cancel(row, run)
        else:
            row.phase = run.state
        row.save(update_fields=("result", "phase", "error"))

    def advance_files(self, row: Operation) -> None:
        """Creates the clone, or deletes its storage once it is archived. If storage is unreachable, the next pass
        retries. The clone's rows stay.
        """
        if row.state == OperationState.RUNNING:
            _delete_clone(row)
            return
        try:
            _start(row, self.parse(row.params))
        except WorkWithdrawn:
            log.info("a drill was withdrawn while its clone was created", operation=str(row.pk))
        except Refused as refused:
            _end_or_wait(row, refused)
        except IntegrityError as error:
            log.warning("the clone of a drill is not created yet", operation=str(row.pk), error=str(error))

    def withdrawal_refusal(self, row: Operation) -> str:
        if reason := super().withdrawal_refusal(row):
            return reason
        is_measured = MEASURED in (row.result or {})
        return f"The {self.noun} has its result, and its clone is being removed." if is_measured else ""


def drills_of(job: Job) -> QuerySet[Operation]:
    """The drills of a job, newest first."""
    return Operation.objects.filter(job=job, kind=OperationKind.DRILL)


def _active_conflict(job: Job) -> Conflict | None:
    """Why no restore drill of a job can begin; None if one can."""
    if drills_of(job).filter(state__in=ACTIVE_STATES).exists():
        return Conflict("drill-active", "Another restore drill of this job has not ended.")
    return None


def _start(row: Operation, params: CloneParams) -> None:
    with prepared_clone(row, params) as prepared, transaction.atomic():
        run = create_clone(row, prepared, "drill")
        result = {"job": run.job_id, "run": run.pk, "restored_bytes": prepared.restored_bytes}
        release(row)
        if not _row_in_queue(row).update(state=OperationState.RUNNING, started_at=Now(), result=result):
            raise WorkWithdrawn


def _end_or_wait(row: Operation, refused: Refused) -> None:
    if refused.status == HTTPStatus.SERVICE_UNAVAILABLE and timezone.now() - row.created_at < LIMIT:
        log.warning("the clone of a drill is not created yet", operation=str(row.pk), error=refused.detail)
        _row_in_queue(row).update(phase=f"waiting for storage: {refused.__cause__}")
        return
    with transaction.atomic():
        release(row)
        error = {"code": refused.code, "message": refused.detail}
        _row_in_queue(row).update(state=OperationState.FAILED, phase="", ended_at=Now(), error=error)


def _row_in_queue(row: Operation) -> QuerySet[Operation]:
    """The row, unless the drill was withdrawn meanwhile."""
    return Operation.objects.filter(pk=row.pk, state=OperationState.QUEUED)


def _limit_error(run: Run) -> dict[str, str]:
    has_slots = run.run_state not in (RunState.QUEUED, RunState.WAITING)
    message = f"The clone was {run.state}, without a checkpoint, at the time limit of {formats.duration(_LIMIT_MS)}."
    return {"code": "drill-timeout" if has_slots else DRILL_WITHOUT_SLOTS, "message": message}


def _measurements(run: Run, first: Checkpoint) -> dict[str, Any]:
    """Times since the request, in ms. That of the first record is exact to an interval of the metrics."""
    flowing = Metrics.objects.filter(
        run_id=run.pk, at__gte=run.created_at, step_s=FINEST_STEP_S, operator=WHOLE_RUN, records_in__gt=0
    ).aggregate(first=Min("at"))["first"]
    return {
        "start_ms": _since_request(run, run.started_at),
        "first_record_ms": _since_request(run, flowing),
        MEASURED: _since_request(run, first.completed_at),
        "checkpoint_bytes": first.size_bytes,
    }


def _since_request(run: Run, moment: datetime | None) -> int | None:
    return None if moment is None else max(0, round((moment - run.created_at).total_seconds() * 1000))


def _cancel(row: Operation, run: Run) -> None:
    """Ends the clone, unless that was requested already."""
    request = Operation(job=run.job, kind=OperationKind.CANCEL, requested_by=row.requested_by, reason="Restore drill")
    try:
        with transaction.atomic():
            operation_type(request.kind).accept(request, RunParams(run=run.pk))
    except Refused as refused:
        log.info("the clone of a drill is ending", run=run.pk, reason=refused.detail)


def _archive(row: Operation, run: Run) -> None:
    """Archives the job of the clone, so that no run of it begins any more. A user may have started another run."""
    other = Run.objects.filter(job=run.job_id).exclude(state__in=TERMINAL_STATES).first()
    if other is not None:
        row.phase = f"waiting for the end of run {other.pk}"
    elif Job.objects.filter(pk=run.job_id, archived_at=None).update(archived_at=Now()):
        row.phase = "deleting files"


def _delete_clone(row: Operation) -> None:
    """Deletes the storage of an archived clone and ends the drill."""
    run = Run.objects.select_related("job").get(pk=(row.result or {})["run"])
    if not run.is_terminal or run.job.archived_at is None:
        return
    Checkpoint.objects.filter(job=run.job, discarded_at=None).update(discarded_at=Now())
    try:
        storage.delete_clone(run.job_id, row.job_id)
    except EnvironmentFailure as error:
        log.warning("the clone of a drill is not deleted yet", run=run.pk, error=str(error))
        Operation.objects.filter(pk=row.pk).update(phase=f"waiting for storage: {error}")
        return
    with transaction.atomic():
        _end(Operation.objects.select_for_update(no_key=True).get(pk=row.pk), run)


def _end(row: Operation, run: Run) -> None:
    row.phase, row.ended_at = "", timezone.now()
    if row.error is not None:  # withdrawn, or at its time limit
        row.state = OperationState.FAILED.value
    elif row.result and MEASURED in row.result:
        row.state = OperationState.SUCCEEDED.value
        if not row.params.get("allow_unmapped"):  # state that the drill dropped was not read
            Checkpoint.objects.filter(pk=row.params["checkpoint"]).update(verified_at=Now())
    else:
        why = f": {run.failure['message']}" if run.failure else "."
        message = f"The clone ended ({run.state}) before its first checkpoint{why}"
        row.state, row.error = OperationState.FAILED.value, {"code": _failure_code(run), "message": message}
    row.save(update_fields=("phase", "state", "ended_at", "error"))


def _failure_code(run: Run) -> str:
    if run.run_state is RunState.CANCELED:
        return DRILL_CANCELED
    return DRILL_WITHOUT_SLOTS if (run.failure or {}).get("code") == "no-slots" else "drill-failed"
