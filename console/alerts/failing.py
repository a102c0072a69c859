"""Channels whose alerts are late: a finding on the console itself, which a banner on all pages shows."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.core.cache import cache
from django.utils import timezone

from console.alerts.models import Delivery

CACHE_KEY: Final = "late-alerts"
MAX_DELAY: Final = timedelta(minutes=2)
_CACHE_S: Final = 5


@dataclass(frozen=True, slots=True)
class LateChannel:
    """A channel with an alert that has waited for longer than `MAX_DELAY`.

    `since`: time of the oldest. `error`: of its newest try, "" before the first.
    """

    name: str
    since: datetime
    error: str


def late_channels() -> tuple[LateChannel, ...]:
    """The channels with late alerts. Each process reads them at most every `_CACHE_S` seconds."""
    channels: tuple[LateChannel, ...] | None = cache.get_or_set(CACHE_KEY, _read, _CACHE_S)
    return channels or ()


def _read() -> tuple[LateChannel, ...]:
    late = Delivery.objects.filter(delivered_at=None, created_at__lt=timezone.now() - MAX_DELAY)
    oldest = late.filter(channel__is_enabled=True).order_by("channel__name", "created_at").distinct("channel__name")
    return tuple(LateChannel(*values) for values in oldest.values_list("channel__name", "created_at", "error"))
