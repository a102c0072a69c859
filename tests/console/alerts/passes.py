"""Passes of the workers at a time of the test, in its thread."""

from datetime import datetime

from django.utils import timezone

from console.alerts.outbox import announce, claim, deliver
from console.incidents.following import follow_verdicts


def watch(at: datetime) -> None:
    """The pass over all jobs at a time, without new verdicts."""
    follow_verdicts(announce, at)


def deliver_due(at: datetime | None = None) -> int:
    """Delivers the alerts that are due, in this thread. Returns their number."""
    keys = claim(at or timezone.now(), 100)
    for key in keys:
        deliver(key)
    return len(keys)
