"""Requests the savepoints of schedules that are due, and discards older savepoints of the same schedule.

A pass locks a schedule and moves its next time in the transaction that writes the operation. Two passes at once, or a
repeated message, therefore request one savepoint.
"""

from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db import transaction
from django.utils import timezone

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint, Kind, Status
from console.operations import services
from console.operations.models import Operation, OperationKind, OperationState, SavepointSchedule
from console.operations.schedules import next_time

MISSED_AFTER: Final = timedelta(minutes=10)  #: a later pass skips the savepoint: its time has passed
REASON: Final = "Schedule of savepoints"

log = structlog.get_logger(__name__)


def run_schedules() -> None:
    """A pass over all schedules."""
    now = timezone.now()
    for pk in SavepointSchedule.objects.filter(next_at__lte=now).values_list("pk", flat=True):
        with transaction.atomic():
            found = SavepointSchedule.objects.select_for_update(skip_locked=True, of=("self",))
            due = found.select_related("job", "owner").filter(pk=pk, next_at__lte=now).first()
            if due is not None:
                _request(due, now)
    succeeded = SavepointSchedule.objects.filter(last_operation__state=OperationState.SUCCEEDED)
    for schedule in succeeded.select_related("job", "owner"):
        _discard_surplus(schedule)


def _request(schedule: SavepointSchedule, now: datetime) -> None:
    """Requests the savepoint, or records why it is missed."""
    due, schedule.next_at = schedule.next_at, next_time(schedule, schedule.next_at, now)
    if now - due > MISSED_AFTER:
        _miss(schedule, due, "No worker of the console requested it within 10 minutes.")
    else:
        asked = services.OperationRequestContext(
            user=schedule.owner, reason=REASON, idempotency_key=f"{schedule.key_prefix}{due.isoformat()}"
        )
        params = {"name": f"{schedule.name} {due:%Y-%m-%d %H:%M}"}
        try:
            accepted = services.request(asked, schedule.job, OperationKind.SAVEPOINT, params)
            schedule.last_operation = accepted.operation
            schedule.missed_at, schedule.missed_reason = None, ""
        except Refused as refused:
            _miss(schedule, due, refused.detail)
    schedule.save()


def _miss(schedule: SavepointSchedule, due: datetime, reason: str) -> None:
    schedule.missed_at, schedule.missed_reason = due, reason
    log.warning("a scheduled savepoint is missed", job=schedule.job_id, due=due.isoformat(), reason=reason)


def _discard_surplus(schedule: SavepointSchedule) -> None:
    """Discards the savepoints of the schedule beyond the newest `keep`. Pinned savepoints stay and do not count.

    A savepoint whose files a checkpoint still needs is tried again at the next pass.
    """
    left = Checkpoint.objects.filter(
        job=schedule.job_id, kind=Kind.SAVEPOINT, status=Status.COMPLETED, discarded_at=None, pinned_at=None
    ).order_by("-number")
    numbers = list(left.values_list("number", flat=True))
    if len(numbers) <= schedule.keep:
        return
    made = Operation.objects.filter(
        job=schedule.job_id, idempotency_key__startswith=schedule.key_prefix, result__checkpoint__in=numbers
    )
    own = {row.result["checkpoint"] for row in made.only("result") if row.result}
    surplus = left.filter(number__in=own)[schedule.keep :]
    asked = services.OperationRequestContext(user=schedule.owner, reason=REASON)
    for checkpoint in surplus:
        try:
            services.request(asked, schedule.job, OperationKind.DISCARD, {"checkpoint": checkpoint.pk})
        except Refused as refused:
            log.info("an older scheduled savepoint stays", checkpoint=checkpoint.pk, reason=refused.detail)
