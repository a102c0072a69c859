"""Passes of the console's own workers. Without reconciler and verdicts no page knows the health of other jobs.

A pass of any periodic task of the queue `stages` shows that a worker of it has a free place. Tasks that work on files
share a lock: a pass that does not get it does nothing, and is not recorded.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from django.core.cache import cache
from django.db.models.functions import Now

from console.health.models import HousekeepingPass

CACHE_KEY: Final = "housekeeping-pass"
RECONCILER: Final = "reconciler"
STAGES: Final = "stages"
MAX_SILENCE: Final = timedelta(seconds=30)  #: the longest period of a recorded task is 5 s
MAX_SILENCE_OF_STAGES: Final = timedelta(minutes=2)  #: compilations may hold all places for a while
_CACHE_S: Final = 2


def record_passes(name: str, task: Callable[[], bool | None]) -> Callable[[], None]:
    """The task, which stores the time of each pass that ends without an error, under `name`.

    The task returns False if another pass is under way.
    """

    def run() -> None:
        if task() is False:
            return
        row = HousekeepingPass(task=name, at=Now())
        HousekeepingPass.objects.bulk_create([row], update_conflicts=True, unique_fields=["task"], update_fields=["at"])

    return run


def silent_since(now: datetime) -> datetime | None:
    """The time of the newest pass of the task that has been silent for longest, if its next pass is overdue."""
    oldest = min((at for task, at in _passes().items() if task != STAGES), default=None)
    return oldest if oldest is not None and _is_overdue(oldest, now, MAX_SILENCE) else None


def reconciler_silent_since(now: datetime) -> datetime | None:
    """The time of the newest pass of the reconciler, if the next one is overdue."""
    newest = _passes().get(RECONCILER)
    return newest if newest is not None and _is_overdue(newest, now, MAX_SILENCE) else None


def stages_silent_since(now: datetime) -> datetime | None:
    """The time of the newest pass in the queue `stages`, if the next one is overdue."""
    newest = _passes().get(STAGES)
    return newest if newest is not None and _is_overdue(newest, now, MAX_SILENCE_OF_STAGES) else None


def _is_overdue(newest: datetime, now: datetime, limit: timedelta) -> bool:
    """Whether the pass after `newest` is overdue. A pass from the future is the last before the clock was set back."""
    return abs(now - newest) > limit


def _passes() -> Mapping[str, datetime]:
    """Each process reads the passes at most every `_CACHE_S` seconds, so that they cost pages no query."""
    passes: Mapping[str, datetime] | None = cache.get_or_set(
        CACHE_KEY, lambda: dict(HousekeepingPass.objects.values_list("task", "at")), _CACHE_S
    )
    return passes or {}
