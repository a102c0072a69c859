"""A new schedule of savepoints or drills, or its change."""

from datetime import time
from typing import Annotated

import msgspec
from django.utils import timezone
from msgspec import Meta

from console.jobs.services import lock_job
from console.operations.blackouts import MAX_WINDOWS, PATTERN
from console.operations.labels import require_name
from console.operations.models import Operation, OperationKind, Schedule, ScheduledOperation
from console.operations.operation_type import OperationType, save_succeeded
from console.operations.schedules import DEFAULT_KEEP, DEFAULT_NAME, next_time


class ScheduleParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Savepoints or drills every `every_hours` hours, or each day at `daily_at` ("HH:MM", UTC).

    `name`: the savepoints have this name and the time. `keep`: number of them that are kept, besides pinned ones.
    `blackouts`: windows such as "sat,sun 00:00-24:00" or "09:00-17:00" (UTC), in which nothing is requested.
    """

    operation: ScheduledOperation = ScheduledOperation.SAVEPOINT
    every_hours: Annotated[int, Meta(ge=1, le=168)] | None = None
    daily_at: Annotated[str, Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")] | None = None
    keep: Annotated[int, Meta(ge=1, le=1000)] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=80)] | None = None
    blackouts: Annotated[tuple[Annotated[str, Meta(pattern=PATTERN)], ...], Meta(max_length=MAX_WINDOWS)] = ()

    def __post_init__(self) -> None:
        if (self.every_hours is None) == (self.daily_at is None):
            raise ValueError("either `every_hours` or `daily_at` must be given")
        if self.operation is ScheduledOperation.DRILL and (self.keep is not None or self.name is not None):
            raise ValueError("`keep` and `name` are of savepoints, not of drills")


class SetSchedule(OperationType):
    """Creates or replaces a schedule of the job. Its operations are requested by the user of the row."""

    kind = OperationKind.SCHEDULE
    params = ScheduleParams
    message = "The schedule is saved."

    def accept(self, row: Operation, params: ScheduleParams) -> Operation:
        """As `OperationType.accept`.

        Raises:
            InvalidField: the name cannot be used, or every time is within a blackout.
        """
        is_savepoint = params.operation is ScheduledOperation.SAVEPOINT
        name = (params.name or DEFAULT_NAME).strip() if is_savepoint else ""
        require_name(name, "params.name")
        lock_job(row.job)
        key = {"job": row.job, "operation": params.operation.value}
        schedule = Schedule.objects.filter(**key).first() or Schedule(**key)
        assert row.requested_by is not None, "a user requests an operation"
        schedule.every_hours = params.every_hours
        schedule.daily_at = None if params.daily_at is None else time.fromisoformat(params.daily_at)
        schedule.name, schedule.owner = name, row.requested_by
        schedule.keep = (params.keep or DEFAULT_KEEP) if is_savepoint else None
        schedule.blackouts = list(params.blackouts)
        schedule.missed_at, schedule.missed_reason = None, ""
        now = timezone.now()
        schedule.next_at = next_time(schedule, now, now)
        schedule.save()
        return save_succeeded(row, {"next_at": schedule.next_at.isoformat()})
