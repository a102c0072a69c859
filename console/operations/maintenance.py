"""Maintenance mode: for a time, the console accepts no operation that starts or changes a run, or touches its files.

Savepoints and stops without a target folder and cancels stay possible, as do names, pins, reviews and schedules.

Runs continue, and job masters restart them. Operations that were accepted before are carried out.
"""

from typing import Any, Final, cast

from django.core.cache import cache
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField
from console.accounts.rights import require_maintain
from console.accounts.storable import text_problem
from console.jobs.changes import MAX_REASON_LENGTH
from console.operations.models import Maintenance
from console.operations.operation_type import OperationType

CACHE_KEY: Final = "maintenance"
_CACHE_S: Final = 2  #: a page may show the mode of so many seconds ago; a request reads the row


def active_maintenance() -> Maintenance | None:
    """The maintenance that is under way."""
    return Maintenance.objects.filter(ended_at=None).select_related("started_by").first()


def shown_maintenance() -> Maintenance | None:
    """The active maintenance for pages. Each process reads it at most every `_CACHE_S` seconds."""
    entries: Any = cache.get_or_set(CACHE_KEY, lambda: tuple(filter(None, [active_maintenance()])), _CACHE_S)
    return cast(Maintenance, entries[0]) if entries else None


def require_no_maintenance(operation: OperationType) -> None:
    """Raises Conflict if an operation of this kind cannot be requested now."""
    if conflict := maintenance_conflict(operation, active_maintenance()):
        raise conflict


def maintenance_conflict(operation: OperationType, active: Maintenance | None) -> Conflict | None:
    """Why an operation of this kind cannot be requested during `active`; None if it can be."""
    if active is None or not operation.blocked_by_maintenance:
        return None
    since = f"{active.started_at:%Y-%m-%d %H:%M} UTC"
    detail = (
        f"{active.started_by} began maintenance at {since}: {active.reason} Until its end, no run starts, drains "
        "or is rescaled, and no files of savepoints are copied, checked or deleted."
    )
    return Conflict("maintenance", detail, since=active.started_at.isoformat(), by=str(active.started_by))


def begin_maintenance(user: User, reason: str) -> Maintenance:
    """Begins maintenance.

    Raises:
        Forbidden: the user lacks the permission.
        InvalidField: the reason is missing or cannot be stored.
        Conflict: maintenance is under way.
    """
    require_maintain(user)
    reason = reason.strip()
    if why := text_problem(reason):
        raise InvalidField("reason", why)
    if not 0 < len(reason) <= MAX_REASON_LENGTH:
        raise InvalidField("reason", f"must have 1 to {MAX_REASON_LENGTH} characters; users see it with each refusal")
    sentence = reason if reason.endswith((".", "!", "?")) else f"{reason}."
    try:
        with transaction.atomic():
            row = Maintenance.objects.create(reason=sentence, started_by=user)
    except IntegrityError as error:
        raise Conflict("maintenance", "Maintenance is under way already. End it first.") from error
    row.refresh_from_db()  # reads the time that Postgres has set
    cache.delete(CACHE_KEY)
    return row


def end_maintenance(user: User) -> Maintenance:
    """Ends the active maintenance.

    Raises:
        Forbidden: the user lacks the permission.
        Conflict: no maintenance is under way.
    """
    require_maintain(user)
    row = active_maintenance()
    if row is None or not Maintenance.objects.filter(pk=row.pk, ended_at=None).update(ended_at=Now(), ended_by=user):
        raise Conflict("no-maintenance", "No maintenance is under way.")
    row.refresh_from_db()
    cache.delete(CACHE_KEY)
    return row
