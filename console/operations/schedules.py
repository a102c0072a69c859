"""The schedule of savepoints of a job. `console.operations.scheduled_savepoints` requests the savepoints."""

from datetime import UTC, datetime, time, timedelta

from django.utils import timezone

from console.accounts.refusals import Conflict
from console.jobs.services import lock_job
from console.operations.labels import record_success, require_name
from console.operations.models import Operation, OperationKind, SavepointSchedule
from console.operations.params import NoParams, ScheduleParams


def accept_schedule(row: Operation, wanted: ScheduleParams) -> Operation:
    """Creates or replaces the schedule of the job. Its savepoints are requested by the user of `row`.

    Raises:
        InvalidField: the name cannot be used.
    """
    require_name(wanted.name, "params.name")
    lock_job(row.job)
    schedule = SavepointSchedule.objects.filter(job=row.job).first() or SavepointSchedule(job=row.job)
    assert row.requested_by is not None, "a user requests an operation"
    schedule.every_hours = wanted.every_hours
    schedule.daily_at = None if wanted.daily_at is None else time.fromisoformat(wanted.daily_at)
    schedule.name, schedule.keep, schedule.owner = wanted.name.strip(), wanted.keep, row.requested_by
    schedule.missed_at, schedule.missed_reason = None, ""
    now = timezone.now()
    schedule.next_at = next_time(schedule, now, now)
    schedule.save()
    return record_success(row, {"next_at": schedule.next_at.isoformat()})


def accept_unschedule(row: Operation, wanted: NoParams) -> Operation:
    """Removes the schedule of the job; its savepoints stay.

    Raises:
        Conflict: the job has no schedule.
    """
    assert row.kind == OperationKind.UNSCHEDULE
    lock_job(row.job)
    if not SavepointSchedule.objects.filter(job=row.job).delete()[0]:
        raise Conflict("not-scheduled", "The job has no schedule of savepoints.")
    return record_success(row, {})


def next_time(schedule: SavepointSchedule, due: datetime, now: datetime) -> datetime:
    """The first time of the schedule after `now`. Intervals of hours are counted from `due`."""
    if schedule.daily_at is not None:
        today = now.astimezone(UTC).replace(
            hour=schedule.daily_at.hour, minute=schedule.daily_at.minute, second=0, microsecond=0
        )
        return today if today > now else today + timedelta(days=1)
    step = timedelta(hours=schedule.every_hours or 1)
    return due + step * ((now - due) // step + 1)
