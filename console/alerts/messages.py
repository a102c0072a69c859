"""The message of an alert: its facts as JSON, a title and a text.

The message is made in the transaction that changes the incident, so that a late delivery reports the facts of then.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from console.alerts.models import AlertEvent
from console.health.findings import Level
from console.health.words import HEALTH_WORDS
from console.incidents.models import Incident

_TITLES: Final[Mapping[str, str]] = {
    AlertEvent.OPENED: "{job} {state}",
    AlertEvent.CHANGED: "{job} {state} (changed)",
    AlertEvent.REPEATED: "{job} {state} (repeated)",
    AlertEvent.RESOLVED: "{job}: the incident has ended",
}
_STATES: Final[Mapping[str, str]] = {**HEALTH_WORDS, Level.FAILED.word: "is failing"}


def incident_message(key: UUID, event: AlertEvent, incident: Incident, now: datetime) -> dict[str, Any]:
    """The message on an incident. `key`: id of the delivery."""
    job, cause, level = incident.job, incident.finding, Level(incident.level)
    state = "has failed" if cause.rule == "run-failed" else _STATES[level.word]
    title = _TITLES[event].format(job=job.name, state=state)
    address = _absolute(f"/incidents/{incident.pk}/")
    lines = [
        _plain(cause.sentence),
        f"Operator: {incident.operator_name}" if incident.operator_name else "",
        f"Act: {_plain(cause.remedy)}",
        f"Since: {incident.opened_at:%Y-%m-%d %H:%M:%S} UTC",
        f"Well since: {incident.well_since:%Y-%m-%d %H:%M:%S} UTC" if incident.well_since else "",
        f"Runbook: {job.runbook}" if job.runbook else "",
        f"Incident: {address}",
    ]
    return {
        "id": str(key),
        "event": event.value,
        "at": now.isoformat(),
        "title": title,
        "text": "\n".join(filter(None, lines)),
        "job": {
            "id": job.pk, "name": job.name, "owner": job.owner, "tags": job.tags, "runbook": job.runbook,
            "url": _absolute(f"/jobs/{job.pk}/"),
        },
        "incident": {
            "id": incident.pk, "url": address, "level": level.word, "opened_at": incident.opened_at.isoformat(),
            "well_since": incident.well_since and incident.well_since.isoformat(),
        },
        "cause": {
            "rule": cause.rule, "sentence": _plain(cause.sentence), "operator": cause.operator,
            "operator_name": incident.operator_name, "remedy": _plain(cause.remedy), "act": cause.act or "",
            "since": cause.since and cause.since.isoformat(),
        },
    }  # fmt: skip


def trial_message(key: UUID, now: datetime, user: str) -> dict[str, Any]:
    """A message that shows that a channel works."""
    return {
        "id": str(key),
        "event": AlertEvent.TEST.value,
        "at": now.isoformat(),
        "title": "Test message from Weir",
        "text": f"{user} sent this message to try the channel.\nConsole: {_absolute('/')}",
    }


def _plain(text: str) -> str:
    """The text without the backticks around names."""
    return text.replace("`", "")


def _absolute(path: str) -> str:
    return f"{settings.WEIR_CONSOLE_URL.rstrip('/')}{path}"
