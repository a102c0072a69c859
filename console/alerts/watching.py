"""The pass of the queue housekeeping over all jobs: verdicts, incidents by the verdicts, and their alerts."""

from console.alerts.outbox import announce
from console.health.housekeeping import store_verdicts
from console.incidents.following import follow_verdicts


def watch_jobs() -> None:
    """Stores the verdicts, and follows those that could be stored."""
    try:
        store_verdicts()
    finally:
        follow_verdicts(announce)
