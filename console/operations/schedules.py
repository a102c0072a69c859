"""Schedules of savepoints and of restore drills. `console.operations.scheduled_operations` requests the operations."""

from datetime import UTC, datetime, time, timedelta

from django.utils import timezone

from console.accounts.refusals import Conflict, InvalidField
from console.jobs.services import lock_job
from console.operations.blackouts import is_blacked_out
from console.operations.labels import record_success, require_name
from console.operations.models import Operation, OperationKind, Schedule, ScheduledOperation
from console.operations.params import ScheduleParams, UnscheduleParams

DEFAULT_NAME = "scheduled"
DEFAULT_KEEP = 7
_MAX_SKIPPED = 168  #: after as many times, an interval of whole hours is at the same time of the week again
SHOWN_TIMES = 5  #: next times on the page and over REST


def accept_schedule(row: Operation, wanted: ScheduleParams) -> Operation:
    """Creates or replaces a schedule of the job. Its operations are requested by the user of `row`.

    Raises:
        InvalidField: the name cannot be used, or every time is within a blackout.
    """
    is_savepoint = wanted.operation is ScheduledOperation.SAVEPOINT
    name = (wanted.name or DEFAULT_NAME).strip() if is_savepoint else ""
    require_name(name, "params.name")
    lock_job(row.job)
    own = {"job": row.job, "operation": wanted.operation.value}
    schedule = Schedule.objects.filter(**own).first() or Schedule(**own)
    assert row.requested_by is not None, "a user requests an operation"
    schedule.every_hours = wanted.every_hours
    schedule.daily_at = None if wanted.daily_at is None else time.fromisoformat(wanted.daily_at)
    schedule.name, schedule.owner = name, row.requested_by
    schedule.keep = (wanted.keep or DEFAULT_KEEP) if is_savepoint else None
    schedule.blackouts = list(wanted.blackouts)
    schedule.missed_at, schedule.missed_reason = None, ""
    now = timezone.now()
    schedule.next_at = next_time(schedule, now, now)
    schedule.save()
    return record_success(row, {"next_at": schedule.next_at.isoformat()})


def accept_unschedule(row: Operation, wanted: UnscheduleParams) -> Operation:
    """Removes a schedule of the job; its savepoints and the results of its drills stay.

    Raises:
        Conflict: the job has no such schedule.
    """
    assert row.kind == OperationKind.UNSCHEDULE
    lock_job(row.job)
    schedule = Schedule(job=row.job, operation=wanted.operation.value)
    if not Schedule.objects.filter(job=row.job, operation=wanted.operation.value).delete()[0]:
        raise Conflict("not-scheduled", f"The job has no schedule of {schedule.noun}s.")
    return record_success(row, {})


def next_time(schedule: Schedule, due: datetime, now: datetime) -> datetime:
    """The first time of the schedule after `now` outside its blackouts. Intervals of hours are counted from `due`.

    Raises:
        InvalidField: all times are within a blackout.
    """
    found = _next_time(schedule, due, now)
    for _ in range(_MAX_SKIPPED):
        if not is_blacked_out(found, schedule.blackouts):
            return found
        found = _next_time(schedule, due, found)
    raise InvalidField("params.blackouts", "must leave at least one time of the schedule")


def _next_time(schedule: Schedule, due: datetime, now: datetime) -> datetime:
    if schedule.daily_at is not None:
        today = now.astimezone(UTC).replace(
            hour=schedule.daily_at.hour, minute=schedule.daily_at.minute, second=0, microsecond=0
        )
        return today if today > now else today + timedelta(days=1)
    step = timedelta(hours=schedule.every_hours or 1)
    return due + step * ((now - due) // step + 1)


def next_times(schedule: Schedule, count: int) -> list[datetime]:
    """The next `count` times of the schedule."""
    found = [schedule.next_at]
    while len(found) < count:
        found.append(next_time(schedule, found[-1], found[-1]))
    return found
