"""Passes of the console's own worker: reconciler and verdicts. Without them no page knows the health of other jobs."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from django.core.cache import cache
from django.db.models import Min
from django.db.models.functions import Now

from console.health.models import HousekeepingPass

CACHE_KEY: Final = "housekeeping-pass"
_CACHE_S: Final = 2
MAX_SILENCE: Final = timedelta(seconds=30)  #: the longest period of a recorded task is 5 s


def record_passes(name: str, task: Callable[[], None]) -> Callable[[], None]:
    """The task `name`, which stores the time of each pass that ends without an error."""

    def run() -> None:
        task()
        row = HousekeepingPass(task=name, at=Now())
        HousekeepingPass.objects.bulk_create([row], update_conflicts=True, unique_fields=["task"], update_fields=["at"])

    return run


def silent_since(now: datetime) -> datetime | None:
    """The time of the newest pass of the task that has been silent for longest, if its next pass is overdue.

    Each process reads the passes at most every `_CACHE_S` seconds, so that they cost pages no query.
    """
    oldest: datetime | None = cache.get_or_set(CACHE_KEY, _oldest_pass, _CACHE_S)
    return oldest if oldest is not None and now - oldest > MAX_SILENCE else None


def _oldest_pass() -> datetime | None:
    oldest: datetime | None = HousekeepingPass.objects.aggregate(at=Min("at"))["at"]
    return oldest
