"""Requests the savepoints and restore drills of schedules that are due, and discards older scheduled savepoints.

A pass locks a schedule and moves its next time in the transaction that writes the operation. Two passes at once, or a
repeated message, therefore request one operation.
"""

from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint, Kind, ReviewState, Status
from console.checkpoints.selectors import continuable
from console.jobs.models import Job, ReviewPolicy
from console.jobs.services import lock_job, require_present
from console.operations import services
from console.operations.blackouts import is_blacked_out
from console.operations.maintenance import active_maintenance
from console.operations.models import Operation, OperationKind, OperationState, Schedule, ScheduledOperation
from console.operations.schedules import next_time
from console.runs.selectors import latest_run

MISSED_AFTER: Final = timedelta(minutes=10)  #: a later pass skips the operation: its time has passed
#: A refusal that may pass is repeated for so long. It ends before `MISSED_AFTER`, so that a miss has its true reason.
_RETRIED_FOR: Final = timedelta(minutes=9)

log = structlog.get_logger(__name__)


def run_schedules() -> None:
    """A pass over the schedules that are due. A schedule that fails stops no other."""
    now = timezone.now()
    for pk, job in Schedule.objects.filter(next_at__lte=now).values_list("pk", "job"):
        try:
            with transaction.atomic():
                lock_job(Job(pk=job))  # before the schedule, as a change of it does
                rows = Schedule.objects.select_for_update(skip_locked=True, of=("self",))
                due = rows.select_related("job", "owner").filter(pk=pk, next_at__lte=now).first()
                if due is not None:
                    _request(due, timezone.now())  # the lock may have taken a while
        except Exception as error:
            log.exception("a schedule failed, the next pass tries it again", schedule=pk, job=job)
            why = f"The request failed: {error}"
            Schedule.objects.filter(pk=pk).update(missed_at=F("next_at"), missed_reason=why)


def discard_surplus() -> None:
    """A pass over the savepoints of all schedules, which reads their files. During maintenance it does nothing."""
    if active_maintenance() is not None:
        return
    succeeded = Schedule.objects.filter(
        operation=ScheduledOperation.SAVEPOINT, last_operation__state=OperationState.SUCCEEDED
    )
    for schedule in succeeded.select_related("job", "owner"):
        _discard_surplus(schedule)


def _request(schedule: Schedule, now: datetime) -> None:
    """Requests the operation, or records why it is missed. The next pass repeats a request that may succeed soon."""
    due, schedule.next_at = schedule.next_at, next_time(schedule, schedule.next_at, now)
    if now - due > MISSED_AFTER:
        failure = schedule.missed_reason if schedule.missed_at == due else ""
        _miss(schedule, due, failure or "No worker of the console requested it within 10 minutes.")
    elif is_blacked_out(now, schedule.blackouts):
        _miss(schedule, due, "No worker of the console requested it before a blackout window began.")
    else:
        context = services.OperationRequestContext(
            user=schedule.owner, reason=_reason(schedule), idempotency_key=f"{schedule.key_prefix}{due.isoformat()}"
        )
        try:
            is_drill = schedule.operation == ScheduledOperation.DRILL
            params = _drill(schedule.job) if is_drill else {"name": f"{schedule.name} {due:%Y-%m-%d %H:%M}"}
            schedule.last_operation = services.request(context, schedule.job, schedule.operation, params).operation
            schedule.missed_at, schedule.missed_reason = None, ""
        except Refused as refused:
            if now - due < _RETRIED_FOR and _may_pass(refused, schedule.job):
                log.info("a scheduled operation is requested again", schedule=schedule.pk, reason=refused.detail)
                return
            _miss(schedule, due, refused.detail)
    schedule.save()


def _may_pass(refused: Refused, job: Job) -> bool:
    """Whether the next pass may succeed: an unfinished run restarts, or storage is unreachable."""
    if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return True
    run = latest_run(job)
    return refused.code == "illegal-state" and run is not None and not run.is_terminal


def _drill(job: Job) -> dict[str, Any]:
    """The parameters of a drill: the newest snapshot that a run would continue from, in the version of its run.

    Raises:
        Conflict: the job is archived, or has no such snapshot.
    """
    require_present(job)
    snapshot = continuable(job).select_related("run").first()
    if snapshot is None:
        raise Conflict("no-checkpoint", "The job has no snapshot from which a run can continue.")
    run = snapshot.run
    return {"checkpoint": snapshot.pk, "version": run.version_id, "parallelism": run.parallelism}


def _reason(schedule: Schedule) -> str:
    return f"Schedule of {schedule.noun}s"


def _miss(schedule: Schedule, due: datetime, reason: str) -> None:
    schedule.missed_at, schedule.missed_reason = due, reason
    log.warning(
        "a scheduled operation is missed",
        job=schedule.job_id, operation=schedule.operation, due=due.isoformat(), reason=reason,
    )  # fmt: skip


def _discard_surplus(schedule: Schedule) -> None:
    """Discards the savepoints of the schedule beyond the newest `keep`.

    Savepoints that are pinned or in review stay and do not count. A savepoint whose files a checkpoint or an operation
    still needs is tried again at the next pass.
    """
    savepoints = Checkpoint.objects.filter(
        job=schedule.job_id, kind=Kind.SAVEPOINT, status=Status.COMPLETED, discarded_at=None, pinned_at=None
    )
    left = savepoints.exclude(review_state=ReviewState.IN_REVIEW).order_by("-number")
    numbers = list(left.values_list("number", flat=True))
    if len(numbers) <= (schedule.keep or 0):
        return
    operations = Operation.objects.filter(
        job=schedule.job_id, idempotency_key__startswith=schedule.key_prefix, result__checkpoint__in=numbers
    )
    schedule_numbers = {row.result["checkpoint"] for row in operations.only("result") if row.result}
    reviewed_savepoint = _reviewed_savepoint(schedule.job)
    surplus = [row for row in left.filter(number__in=schedule_numbers)[schedule.keep :] if row != reviewed_savepoint]
    context = services.OperationRequestContext(user=schedule.owner, reason=_reason(schedule))
    for checkpoint in surplus:
        try:
            services.request(context, schedule.job, OperationKind.DISCARD, {"checkpoint": checkpoint.pk})
        except Refused as refused:
            log.info("an older scheduled savepoint stays", checkpoint=checkpoint.pk, reason=refused.detail)


def _reviewed_savepoint(job: Job) -> Checkpoint | None:
    """The savepoint that the review policy of the job needs for a restore; None if the policy refuses no restore."""
    if job.review_policy != ReviewPolicy.REFUSE:
        return None
    savepoints = continuable(job).exclude(kind=Kind.CHECKPOINT)  # retention discards reviewed checkpoints
    return savepoints.filter(review_state=ReviewState.REVIEWED).first()
