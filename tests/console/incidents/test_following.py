"""Incidents follow the stored verdicts: when they open, what they collect, and when they close."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.health.findings import Level
from console.health.models import JobHealth
from console.incidents.following import WELL_FOR, follow_verdicts
from console.incidents.models import Incident, IncidentFinding
from console.jobs.models import Job, Run
from tests.console.incidents.verdicts import finding, store
from tests.console.ui import rows

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


@pytest.fixture
def run() -> Run:
    return rows.run(rows.job("flights"))


@pytest.fixture
def start() -> datetime:
    return timezone.now().replace(microsecond=0)


def follow(at: datetime) -> list[Incident]:
    """Follows, and returns the incidents of the announcement."""
    announced: list[Incident] = []
    follow_verdicts(lambda incidents, _: announced.extend(incidents), at)
    return announced


LATE = finding("checkpoints-overdue", "No checkpoint for 5 min.")
SLOW = finding("backpressure", "Backpressure from `sessions`.", "window")
FAILED = finding("run-failed", "Table t is missing.", level=Level.FAILED)


def test_an_incident_opens_with_a_verdict_that_is_not_well(run: Run, start: datetime) -> None:
    store(run, start)
    assert follow(start) == []
    store(run, start + SECOND, SLOW, LATE)
    (incident,) = follow(start + SECOND)
    assert (incident.job, incident.run_id, incident.level) == (run.job, run.pk, Level.ATTENTION)
    assert (incident.opened_at, incident.closed_at) == (start + SECOND, None)
    assert (incident.finding.rule, incident.operator_name) == ("backpressure", "sessions")
    assert [row.rule for row in incident.findings.all()] == ["backpressure", "checkpoints-overdue"]
    store(run, start + 5 * SECOND, SLOW, LATE)
    assert follow(start + 5 * SECOND) == [incident]
    assert IncidentFinding.objects.count() == 2


def test_an_incident_begins_when_its_cause_did(run: Run, start: datetime) -> None:
    store(run, start, finding("checkpoints-overdue", "…", since=start - timedelta(minutes=5)))
    (incident,) = follow(start)
    assert incident.opened_at == incident.findings.get().since == start - timedelta(minutes=5)


def test_a_verdict_that_flaps_is_one_incident(run: Run, start: datetime) -> None:
    at = start
    for _ in range(5):
        store(run, at, SLOW)
        follow(at)
        at += WELL_FOR / 2
        store(run, at)
        follow(at)
        at += WELL_FOR / 2 - SECOND
    incident = Incident.objects.get()
    row = incident.findings.get()
    assert (incident.closed_at, row.returns, row.since) == (None, 4, start)
    assert row.ended_at == incident.well_since


def test_an_incident_closes_when_the_verdict_has_stayed_well(run: Run, start: datetime) -> None:
    store(run, start, SLOW)
    follow(start)
    well = start + timedelta(minutes=1)
    store(run, well)
    follow(well)
    store(run, well + WELL_FOR - SECOND)
    follow(well + WELL_FOR - SECOND)
    assert Incident.objects.get().is_open
    store(run, well + WELL_FOR)
    (incident,) = follow(well + WELL_FOR)
    assert incident.closed_at == well, "it ended when it became well"
    assert follow(well + 2 * WELL_FOR) == []
    store(run, well + 2 * WELL_FOR, LATE)
    follow(well + 2 * WELL_FOR)
    assert Incident.objects.count() == 2


def test_an_old_verdict_closes_no_incident(run: Run, start: datetime) -> None:
    """The worker may fall silent just after a verdict that is well."""
    store(run, start, SLOW)
    follow(start)
    store(run, start + SECOND)
    for minutes in range(1, 10):
        follow(start + timedelta(minutes=minutes))
    assert Incident.objects.get().is_open
    Run.objects.filter(pk=run.pk).update(state="stopped", ended_at=start)
    run.refresh_from_db()
    store(run, start + SECOND)
    follow(start + timedelta(minutes=11))
    assert not Incident.objects.get().is_open, "a verdict on a run that has ended is not renewed"


def test_a_failed_run_stays_an_incident_until_its_job_is_well_or_archived(run: Run, start: datetime) -> None:
    Run.objects.filter(pk=run.pk).update(state="failed", ended_at=start)
    run.refresh_from_db()
    store(run, start, FAILED)
    follow(start)
    follow(start + timedelta(days=3))
    assert Incident.objects.get().is_open
    Job.objects.update(archived_at=start)
    for minutes in (0, 3):
        follow(start + timedelta(days=3, minutes=minutes))
    assert not Incident.objects.get().is_open
    assert follow(start + timedelta(days=4)) == []


def test_the_cause_changes_and_a_finding_worsens(run: Run, start: datetime) -> None:
    store(run, start, SLOW)
    follow(start)
    worse = finding("backpressure", "Backpressure, now without end.", "window", Level.FAILED)
    store(run, start + SECOND, LATE, SLOW)
    (incident,) = follow(start + SECOND)
    assert (incident.finding.rule, incident.operator_name) == ("checkpoints-overdue", "")
    store(run, start + 2 * SECOND, worse)
    (incident,) = follow(start + 2 * SECOND)
    assert (incident.level, incident.operator_name) == (Level.FAILED, "sessions")
    row = incident.findings.get(rule="backpressure")
    assert (row.first_sentence, row.sentence) == (SLOW.sentence, worse.sentence)
    assert (row.worsened_at, row.level) == (start + 2 * SECOND, Level.FAILED)
    assert incident.findings.get(rule="checkpoints-overdue").ended_at == start + 2 * SECOND


def test_a_job_that_cannot_be_followed_stops_no_other(run: Run, start: datetime) -> None:
    broken = rows.run(rows.job("broken"))
    store(run, start, SLOW)
    store(broken, start, SLOW)
    JobHealth.objects.filter(job=broken.job).update(findings=[{"rule": "of another version"}])
    follow(start)
    assert Incident.objects.get().job == run.job
    JobHealth.objects.filter(job=run.job).delete()
    Incident.objects.all().delete()
    with pytest.raises(KeyError):
        follow(start)


def test_incident_and_announcement_are_one_transaction(run: Run, start: datetime) -> None:
    store(run, start, SLOW)

    def fail(incidents: Sequence[Incident], now: datetime) -> None:
        raise RuntimeError("the outbox is not there")

    with pytest.raises(RuntimeError):
        follow_verdicts(fail, start)
    assert not Incident.objects.exists()


def test_a_pass_takes_a_constant_number_of_queries_and_writes_changes_only(run: Run, start: datetime) -> None:
    def queries(at: datetime) -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            follow(at)
        return [query["sql"] for query in captured]

    for number in range(5):
        store(rows.run(rows.job(f"job {number}")), start, SLOW, LATE)
    store(run, start, SLOW)
    follow(start)
    again = queries(start)
    assert not [sql for sql in again if sql.startswith(("INSERT", "UPDATE"))], again
    assert len(again) <= 10
