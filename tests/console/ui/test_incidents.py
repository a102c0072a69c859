"""The first page, the list of incidents and the page of an incident."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.accounts.models import User
from console.alerts.models import Channel, Silence
from console.health.findings import Level
from console.health.models import HousekeepingPass, JobHealth
from console.health.passes import CACHE_KEY
from console.incidents.following import WELL_FOR, follow_verdicts
from console.incidents.models import Incident
from console.jobs.models import Attempt, Job, Run
from tests.console.alerts.passes import watch
from tests.console.incidents.verdicts import finding, store
from tests.console.ui import blocks, rows
from tests.console.ui.plots.test_timeline import MAX_QUERIES

pytestmark = pytest.mark.django_db
POLL = {"HX-Request": "true"}
SLOW = finding("backpressure", "Backpressure from `sessions`, which is busy.", "window")
FAILED = finding("run-failed", "Table t is missing.", level=Level.FAILED)


def sick(name: str = "flights", state: str = "running", *found: Any) -> Run:
    """A run with an open incident."""
    run = rows.run(rows.job(name), state)
    store(run, timezone.now() - timedelta(minutes=5), *(found or [SLOW]))
    watch(timezone.now())
    return run


def test_the_first_page_has_a_line_for_each_job_that_is_not_well(at_console: Client, operator: User) -> None:
    at_console.get("/")
    well = rows.run(rows.job("well"))
    store(well, timezone.now())
    watch(timezone.now())
    assert "All jobs are well." in blocks.text(at_console.get("/"))
    sick("slow")
    failed = sick("failed", "failed", FAILED)
    Job.objects.filter(pk=failed.job_id).update(owner="team fares")
    incident = Incident.objects.get(job=failed.job)
    Incident.objects.filter(pk=incident.pk).update(taken_by=operator, taken_at=timezone.now())
    page = at_console.get("/")
    text = blocks.text(page)
    assert [row.job.name for row in page.context["incidents"]] == ["failed", "slow"]
    for part in ("failed team fares Failed Table t is missing.", "Look at the log.", "operator",
                 "Needs attention Backpressure from sessions, which is busy.", "sessions 5 min ago"):  # fmt: skip
        assert part in text
    assert "well" not in [row.job.name for row in page.context["incidents"]]
    assert 'id="as-of"' in page.content.decode()


def test_the_first_page_takes_few_queries(at_console: Client) -> None:
    for number in range(6):
        sick(f"job {number}")
    at_console.get("/")
    with CaptureQueriesContext(connection) as queries:
        at_console.get("/")
    assert len(queries) <= 5


def test_a_poll_of_the_first_page_shows_a_job_that_becomes_sick_and_well(at_console: Client) -> None:
    tag = at_console.get("/", headers=POLL).headers["ETag"]
    assert at_console.get("/", headers={**POLL, "If-None-Match": tag}).status_code == 304
    run = sick()
    answer = at_console.get("/", headers={**POLL, "If-None-Match": tag})
    assert "Backpressure from" in answer.content.decode()
    store(run, timezone.now())
    watch(timezone.now())
    assert "All jobs are well." in blocks.text(at_console.get("/"))


def test_a_silent_worker_is_not_taken_for_well_jobs(at_console: Client) -> None:
    HousekeepingPass.objects.create(task="verdicts", at=timezone.now() - timedelta(minutes=4))
    from django.core.cache import cache

    cache.delete(CACHE_KEY)
    text = blocks.text(at_console.get("/"))
    assert "The health of the jobs is not known." in text
    assert "All jobs are well" not in text


def test_an_incident_names_operator_cause_act_and_its_time(at_console: Client, operator: User) -> None:
    run = rows.run(rows.job("flights"), "restarting")
    Channel.objects.create(name="night shift", address="https://hooks.example.com", signing_secret="${secret:HOOK}")
    rescale = finding("backpressure", "Backpressure from `sessions`, which is busy.", "window")
    began = timezone.now() - timedelta(minutes=30)
    store(run, began, rescale)
    JobHealth.objects.update(findings=[{**JobHealth.objects.get().findings[0], "act": "rescale"}])
    watch(began)
    old = timezone.now() - timedelta(hours=3)
    for token, ended_at in ((7, began + timedelta(minutes=1)), (8, began + timedelta(minutes=2)), (6, old)):
        Attempt.objects.create(
            run=run, token=token, outcome="failed", ended_at=ended_at, reason=f"division by zero at offset {token}",
            detail={"code": "attempt-failed", "operator": "window", "traceback": f"Traceback of {token}"},
        )  # fmt: skip
    rows.operation(run.job, "savepoint", "failed", created_at=began + timedelta(minutes=3), requested_by=operator)
    rows.operation(run.job, "edit", created_at=began - timedelta(minutes=3), requested_by=operator, reason="new owner")
    Run.objects.filter(pk=run.pk).update(state="running")
    incident = Incident.objects.get()
    page = at_console.get(f"/incidents/{incident.pk}/")
    text, html = blocks.text(page), page.content.decode()
    for part in (
        "Backpressure from sessions, which is busy.", "Operator sessions", "Act Look at the log.", "Attempt failed",
        "division by zero at offset 8", "2 attempts", "Traceback of 8", "Savepoint", "Edit", "new owner",
        "night shift Opened",
    ):  # fmt: skip
        assert part in text, part
    assert "offset 6" not in text, "before the incident"
    assert "Traceback of 7" not in text, "one traceback of a cause"
    assert f'id="do-rescale" href="/jobs/{run.job_id}/rescale/"' in html
    assert at_console.get(f"/incidents/{incident.pk}/", headers=POLL).status_code == 200


def test_a_failed_run_has_the_act_of_the_page_of_the_job(at_console: Client) -> None:
    run = rows.run(rows.job("flights"), "failed", failure={"code": "master-died", "message": "The host is gone."})
    checkpoint = rows.checkpoint(run, 7)
    store(run, timezone.now(), FAILED)
    watch(timezone.now())
    html = at_console.get(f"/incidents/{Incident.objects.get().pk}/").content.decode()
    assert 'class="button primary" id="do-restore"' in html
    assert f"/jobs/{run.job_id}/restore/?checkpoint={checkpoint.pk}" in html


def test_an_incident_shows_the_version_and_its_changes_before_it(at_console: Client) -> None:
    job = rows.job("flights")
    rows.run(job, "stopped")
    version = rows.add_version(job, 2, parallelism=4)
    run = rows.run(job, version=version)
    store(run, timezone.now(), SLOW)
    watch(timezone.now())
    text = blocks.text(at_console.get(f"/incidents/{Incident.objects.get().pk}/"))
    assert "The run before had version 1" in text, text[1000:]
    assert "Parallelism parallelism 2 4" in text


def test_the_page_of_an_incident_takes_few_queries(at_console: Client) -> None:
    run = sick("flights", "failed", FAILED)
    for token in range(20):
        Attempt.objects.create(run=run, token=token, outcome="failed", ended_at=timezone.now(), reason=f"lost {token}")
        rows.operation(run.job, "savepoint", "failed", run=run)
    path = f"/incidents/{Incident.objects.get().pk}/"
    at_console.get(path)
    with CaptureQueriesContext(connection) as queries:
        at_console.get(path)
    assert len(queries) <= MAX_QUERIES, [query["sql"][:150] for query in queries]


def test_users_take_an_incident_write_notes_and_silence_its_alerts(at_console: Client, operator: User) -> None:
    sick()
    path = f"/incidents/{Incident.objects.get().pk}/"
    for form in ({"act": "take"}, {"act": "note", "text": "The disk is full."}, {"act": "silence", "hours": "4"}):
        assert at_console.post(path, form).headers["Location"] == path
    text = blocks.text(at_console.get(path))
    for part in ("Taken by operator", "Note", "The disk is full.", "Alerts silenced", "silenced until"):
        assert part in text
    assert Silence.objects.get().until > timezone.now() + timedelta(hours=3)
    at_console.post(path, {"act": "release"})
    assert Incident.objects.get().taken_by is None
    refused = at_console.post(path, {"act": "note", "text": " "}, follow=True)
    assert "must have 1 to 2000 characters" in blocks.text(refused)


def test_a_reader_changes_no_incident(reading: Client) -> None:
    sick()
    path = f"/incidents/{Incident.objects.get().pk}/"
    for form in ({"act": "take"}, {"act": "note", "text": "mine"}, {"act": "silence", "hours": "4"}):
        assert "You may not operate jobs" in blocks.text(reading.post(path, form, follow=True))
    incident = Incident.objects.get()
    assert (incident.taken_by, incident.notes.count(), Silence.objects.count()) == (None, 0, 0)


def test_incidents_are_listed_also_of_a_job(at_console: Client) -> None:
    run, other = sick("alpha"), sick("beta")
    now = timezone.now()
    for moment in (now, now + WELL_FOR):
        store(run, moment)
        follow_verdicts(lambda *_: None, moment)
    ended, opened = Incident.objects.get(job=run.job), Incident.objects.get(job=other.job)
    page = at_console.get("/incidents/")
    assert [row.pk for row in page.context["incidents"].rows] == [opened.pk, ended.pk]
    assert "Ended" in blocks.text(page)
    page = at_console.get(f"/incidents/?job={run.job_id}")
    assert [row.pk for row in page.context["incidents"].rows] == [ended.pk]
    assert at_console.get("/incidents/?job=999999").status_code == 404
    assert at_console.get(f"/incidents/?before={opened.pk}", headers=POLL).status_code == 200


@pytest.mark.parametrize("found", [SLOW, FAILED])
def test_the_verdict_on_the_page_of_a_job_leads_to_its_incident(at_console: Client, found: Any) -> None:
    run = sick("flights", "failed" if found is FAILED else "running", found)
    page = at_console.get(f"/jobs/{run.job_id}/").content.decode()
    path = f"/jobs/{run.job_id}/incident/"
    if found is FAILED:
        assert f'id="incident" href="{path}"' in page
    assert at_console.get(path).headers["Location"] == f"/incidents/{Incident.objects.get().pk}/"
    Incident.objects.update(closed_at=timezone.now())
    assert at_console.get(path).headers["Location"] == f"/incidents/?job={run.job_id}"
