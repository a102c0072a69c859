"""Stored verdicts of jobs, as the pass of the housekeeping writes them."""

from datetime import datetime

from console.health.findings import Finding, Level
from console.health.models import JobHealth
from console.health.verdicts import encode
from console.incidents.models import Incident
from console.jobs.models import Run


def finding(
    rule: str, sentence: str, operator: str = "", level: Level = Level.ATTENTION, since: datetime | None = None
) -> Finding:
    remedy = "Look at the log."
    return Finding(rule=rule, sentence=sentence, operator=operator, level=level, since=since, remedy=remedy, act="")


def store(run: Run, at: datetime, *findings: Finding) -> None:
    """Stores a verdict of `at`; without findings the run is well."""
    columns = {
        "run_id": run.pk, "run_state": run.state, "token": run.token, "checked_at": at,
        "level": findings[0].level if findings else Level.OK,
        "sentence": findings[0].sentence if findings else "",
        "since": findings[0].since or at if findings else run.started_at,
        "findings": [encode(each) for each in findings],
    }  # fmt: skip
    JobHealth.objects.update_or_create(job=run.job, defaults=columns)


def open_incident(run: Run) -> Incident:
    cause = encode(finding("backpressure", "Backpressure from `sums`.", "sums"))
    return Incident.objects.create(
        job=run.job, run_id=run.pk, level=Level.ATTENTION, cause=cause, opened_at=run.created_at
    )
