"""One verdict: list, pages, REST, command line and metrics show the same, until a later state voids it."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from console.accounts.models import User
from console.health import verdicts
from console.health.collection import collect
from console.health.facts import RunFacts
from console.health.findings import Level
from console.health.housekeeping import store_verdicts
from console.health.models import JobHealth
from console.jobs.models import Job, Run
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import Commands
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

WORD, CAUSE = "Running, failing", "No checkpoint has completed for 3 min"


@pytest.fixture
def failing(operator: User) -> Run:
    """Its checkpoints fail, and a pass has judged that."""
    run = rows.run(rows.job())
    rows.checkpoint(run, 7, triggered_at=timezone.now() - timedelta(seconds=200))
    for number in (8, 9, 10):
        rows.checkpoint(run, number, status="failed", reason="finalize_failed")
    store_verdicts()
    return run


def rest(api: APIClient, path: str) -> dict[str, Any]:
    health: dict[str, Any] = api.get(f"/api/v1/{path}/").json()["health"]
    return health


def test_the_pages_rest_and_metrics_show_the_verdict_that_the_pass_has_made(
    api: APIClient, browser: Client, failing: Run
) -> None:
    """Pages and REST made their own, later than that of the list and the metrics, which could then differ."""
    made = JobHealth.objects.get()
    rows.checkpoint(failing, 11)  # later than the pass
    listed = api.get("/api/v1/jobs/").json()["results"][0]["health"]
    for health in (listed, rest(api, f"jobs/{failing.job_id}"), rest(api, f"runs/{failing.pk}")):
        assert (health["state"], health["word"], health["level"]) == ("running", WORD, "failed")
        assert (health["sentence"], health["checked_at"]) == (made.sentence, listed["checked_at"])
        assert health["remedy"].startswith("Open the failed checkpoint")
        assert health["findings"] == listed["findings"]
    for path in ("/jobs/", f"/jobs/{failing.job_id}/"):
        said = blocks.text(browser.get(path))
        assert WORD in said, path
        assert CAUSE in said, path
    assert 'weir_health_level{job_name="flights-delays"} 3.0' in api.get("/metrics").content.decode()


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"state": RunState.RESTARTING}, "Restarting"), ({"state": RunState.STOPPING}, "Stopping with savepoint"),
     ({"token": 9_999}, "Running")],
)  # fmt: skip
def test_a_later_state_or_attempt_voids_the_verdict(
    api: APIClient, browser: Client, failing: Run, changes: dict[str, Any], word: str
) -> None:
    """The list showed the cause of the state before beside the word of the present state."""
    Run.objects.update(**changes)
    JobHealth.objects.update(sentence="A cause of before.")
    said = blocks.text(browser.get("/jobs/"))
    assert re.search(rf"{word}(, failing)? for", said)
    listed = api.get("/api/v1/jobs/").json()["results"][0]["health"]
    assert listed["state"] == Run.objects.get().state
    assert "A cause of before." not in listed["sentence"]
    present = rest(api, f"jobs/{failing.job_id}")
    assert present["state"] == Run.objects.get().state
    assert present["checked_at"] is not None, "made at once"
    for text in (said, present["sentence"], blocks.text(browser.get(f"/jobs/{failing.job_id}/"))):
        assert "A cause of before." not in text
    level = 1.0 if word == "Stopping with savepoint" else 3.0  # while it stops, no rule asks for checkpoints
    assert f'weir_health_level{{job_name="flights-delays"}} {level}' in api.get("/metrics").content.decode()


def test_a_restart_loop_keeps_its_place_at_the_top_of_the_list_through_its_changes_of_state(
    browser: Client, failing: Run
) -> None:
    """Its verdict is void after each change; the state alone, running, would come last."""
    rows.checkpoint(rows.run(rows.job("well")), 1)
    store_verdicts()
    for state in (RunState.RESTARTING, RunState.STARTING, RunState.RUNNING):
        Run.objects.filter(pk=failing.pk).update(state=state, token=failing.token + 1)
        lines = browser.get("/jobs/").context["lines"]
        assert [line.job.name for line in lines] == ["flights-delays", "well"], state
        made = Level.OK if state is RunState.STARTING else Level.FAILED  # no rule asks a start for checkpoints
        assert (lines[0].health.state, lines[0].health.level) == (state, made)


def test_a_verdict_that_is_too_old_is_unknown_over_rest_too(api: APIClient) -> None:
    """The list of REST called a job well that nothing had checked for minutes."""
    run = rows.run(rows.job())
    rows.health(run, Level.OK, "", checked_at=timezone.now() - timedelta(minutes=2))
    listed = api.get("/api/v1/jobs/").json()["results"][0]["health"]
    assert (listed["level"], listed["word"]) == ("unknown", "Running, health not checked")


def test_a_list_over_rest_makes_void_verdicts_at_the_cost_of_one(api: APIClient) -> None:
    """It made them job by job, with their facts."""

    def queries() -> int:
        with CaptureQueriesContext(connection) as counted:
            levels = [job["health"]["level"] for job in api.get("/api/v1/jobs/").json()["results"]]
        assert set(levels) == {"ok"}
        return len(counted)

    rows.checkpoint(rows.run(rows.job("first")), 1)
    one = queries()
    for number in range(5):
        rows.checkpoint(rows.run(rows.job(f"next-{number}")), 1)
    assert queries() == one


def test_a_run_that_fails_at_once_has_its_cause_everywhere(api: APIClient, browser: Client, failing: Run) -> None:
    """Lists knew its state only until the next pass, and the metrics did not have it at all."""
    failure = {"code": "missing-table", "message": "Table t is missing."}
    run = rows.run(failing.job, "failed", failure=failure, ended_ago=timedelta(0))
    Job.objects.update(latest_run=run)
    never = rows.run(rows.job("never-checked"), "failed", failure=failure, ended_ago=timedelta(0))
    listed = api.get("/api/v1/jobs/").json()["results"]
    for health in (*(job["health"] for job in listed), rest(api, f"jobs/{run.job_id}"), rest(api, f"runs/{never.pk}")):
        assert (health["level"], health["is_old"]) == ("failed", False)
        assert "Table t is missing." in health["sentence"]
    assert blocks.text(browser.get("/jobs/")).count("Table t is missing.") == 2
    metrics = api.get("/metrics").content.decode()
    for name in ("flights-delays", "never-checked"):
        assert f'weir_health_finding{{job_name="{name}",rule="run-failed"}} 1.0' in metrics


def test_an_unknown_health_is_no_sample(api: APIClient) -> None:
    """The metrics called a job well that nothing had checked for minutes."""
    run, now = rows.run(rows.job()), timezone.now()
    old = now - timedelta(minutes=2)
    rows.health(run, Level.OK, "", checked_at=old)
    metrics = api.get("/metrics").content.decode()
    assert "weir_health_level{" not in metrics
    checked = re.findall(r"weir_health_checked_timestamp_seconds{.*} (.*)", metrics)
    assert [float(at) for at in checked] == [pytest.approx(old.timestamp())]
    (listed,) = api.get("/api/v1/jobs/").json()["results"]
    assert listed["health"]["is_old"] is True
    JobHealth.objects.update(level=Level.FAILED)
    assert 'weir_health_level{job_name="flights-delays"} 3.0' in api.get("/metrics").content.decode(), "the last known"


@pytest.mark.parametrize("path", ["/jobs/", "/cluster/", "/api/v1/jobs/", "/metrics", "/runs/{run}/"])
def test_a_run_whose_rule_raises_breaks_no_list(
    api: APIClient, browser: Client, failing: Run, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Its verdict was void, and each list of jobs failed until the run ended."""
    other = rows.run(rows.job("other"))
    Run.objects.update(token=F("token") + 1)

    def collect_others(runs: Sequence[Run], *arguments: Any) -> Mapping[int, RunFacts]:
        if failing in runs:
            raise KeyError("rows_in")
        return collect(runs, *arguments)

    monkeypatch.setattr(verdicts, "collect", collect_others)
    client = browser if path.startswith(("/jobs", "/cluster", "/runs")) else api
    answer = client.get(path.format(run=failing.pk))
    assert answer.status_code == 200
    if path == "/metrics":
        assert 'weir_health_level{job_name="other"}' in answer.content.decode()
        assert 'weir_health_level{job_name="flights-delays"}' not in answer.content.decode(), "unknown"
    if path == "/api/v1/jobs/":
        levels = {job["name"]: job["health"]["level"] for job in answer.json()["results"]}
        assert levels == {other.job.name: "attention", "flights-delays": "unknown"}


def test_a_reader_makes_a_limited_number_of_verdicts(api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape after a mass restart judged all runs in the thread of a web process."""
    monkeypatch.setattr(verdicts, "MAX_MADE", 2)
    for number in range(4):
        rows.checkpoint(rows.run(rows.job(f"job-{number}")), 1)
    assert api.get("/metrics").content.decode().count("weir_health_level{") == 2
    levels = [job["health"]["level"] for job in api.get("/api/v1/jobs/").json()["results"]]
    assert sorted(levels) == ["ok", "ok", "unknown", "unknown"]


def test_a_job_that_never_ran_has_no_health_over_rest(api: APIClient) -> None:
    job = rows.job()
    assert rest(api, f"jobs/{job.pk}") is None
    assert api.get("/api/v1/jobs/").json()["results"][0]["health"] is None


def test_the_tag_of_a_job_changes_with_its_health_but_an_edit_does_not_depend_on_it(
    api: APIClient, failing: Run
) -> None:
    path = f"/api/v1/jobs/{failing.job_id}/"
    before = api.get(path)["ETag"]
    assert api.get(path, headers={"If-None-Match": before}).status_code == 304
    store_verdicts(timezone.now() + timedelta(seconds=5))
    after = api.get(path, headers={"If-None-Match": before})
    assert (after.status_code, after["ETag"] == before) == (200, False)
    changed = api.patch(path, {"owner": "team"}, headers={"If-Match": before})
    assert changed.status_code == 200
    assert api.patch(path, {"owner": "other"}, headers={"If-Match": before}).status_code == 412


@pytest.mark.django_db(transaction=True)
def test_the_command_line_shows_word_cause_and_remedy(weir: Commands, failing: Run) -> None:
    line = weir("jobs").stdout.splitlines()[1]
    assert WORD in line
    assert CAUSE in line
    first, second, *_ = weir("status", "flights-delays").stdout.splitlines()
    assert first.startswith(f"flights-delays: {WORD}, run {failing.pk}, ")
    assert second.startswith(f"failed: {CAUSE}")
    assert "Open the failed checkpoint" in second
