"""Restore drills: a snapshot is restored as a clone beside its job, measured until its first checkpoint, and removed.

`console.operations.drill_starts` accepts a drill and creates its clone, which discards its output. The operation of the
drill is the evidence: its result has the measurements. Each pass reads the rows alone, so a console that dies continues
with the next pass. `console.operations.file_work` deletes the clone's files.
"""

from datetime import datetime
from typing import Any, Final

import structlog
from django.db import transaction
from django.db.models import Min
from django.db.models.functions import Now
from django.utils import timezone

from console import formats
from console.accounts.refusals import Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Status
from console.checkpoints.operation_codes import DRILL_CANCELED, DRILL_WITHOUT_SLOTS
from console.jobs.models import Job, Run
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics
from console.operations import services
from console.operations.drill_starts import LIMIT
from console.operations.models import Operation, OperationKind, OperationState
from console.operations.params import RunParams
from console.operations.passes import for_each_active
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState

MEASURED: Final = "first_checkpoint_ms"  #: in the result of a drill from its clone's first checkpoint on

_LIMIT_MS: Final = LIMIT.total_seconds() * 1000

log = structlog.get_logger(__name__)


def advance_drills() -> None:
    """Takes every drill under way as far as its clone has come."""
    for_each_active(OperationKind.DRILL, _advance)


def _advance(row: Operation) -> None:
    if row.started_at is None:
        return  # it has no clone yet
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
            services.accept(request, RunParams(run=run.pk))
    except Refused as refused:
        log.info("the clone of a drill is ending", run=run.pk, reason=refused.detail)


def _archive(row: Operation, run: Run) -> None:
    """Archives the job of the clone, so that no run of it begins any more. A user may have started another run."""
    other = Run.objects.filter(job=run.job_id).exclude(state__in=TERMINAL_STATES).first()
    if other is not None:
        row.phase = f"waiting for the end of run {other.pk}"
    elif Job.objects.filter(pk=run.job_id, archived_at=None).update(archived_at=Now()):
        row.phase = "deleting files"


def delete_clones() -> None:
    """Deletes the storage of archived clones and ends their drills. If storage is unreachable, the next pass retries.

    The clone's rows stay.
    """
    for row in Operation.objects.filter(kind=OperationKind.DRILL, state=OperationState.RUNNING):
        run = Run.objects.select_related("job").get(pk=(row.result or {})["run"])
        if not run.is_terminal or run.job.archived_at is None:
            continue
        Checkpoint.objects.filter(job=run.job, discarded_at=None).update(discarded_at=Now())
        try:
            storage.delete_clone(run.job_id, row.job_id)
        except OSError as error:
            log.warning("the clone of a drill is not deleted yet", run=run.pk, error=str(error))
            Operation.objects.filter(pk=row.pk).update(phase=f"waiting for storage: {error}")
            continue
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
