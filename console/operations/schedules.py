"""The times of schedules. `console.housekeeping.scheduled_operations` requests their operations."""

from datetime import UTC, datetime, timedelta

from console.accounts.refusals import InvalidField
from console.operations.blackouts import is_blacked_out
from console.operations.models import Schedule

DEFAULT_NAME = "scheduled"
DEFAULT_KEEP = 7
_MAX_SKIPPED = 168  #: after as many times, an interval of whole hours is at the same time of the week again
SHOWN_TIMES = 5  #: next times on the page and over REST


def next_time(schedule: Schedule, due: datetime, now: datetime) -> datetime:
    """The first time of the schedule after `now` outside its blackouts. Intervals of hours are counted from `due`.

    Raises:
        InvalidField: all times are within a blackout.
    """
    time = _next_time(schedule, due, now)
    for _ in range(_MAX_SKIPPED):
        if not is_blacked_out(time, schedule.blackouts):
            return time
        time = _next_time(schedule, due, time)
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
    times = [schedule.next_at]
    while len(times) < count:
        times.append(next_time(schedule, times[-1], times[-1]))
    return times
