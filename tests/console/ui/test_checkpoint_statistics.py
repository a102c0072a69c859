"""The page of how a job's checkpoints have gone, and what a job promises from end to end."""

import re
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.jobs.models import Attempt, JobVersion, Run
from runtime.core.job.settings import JobSettings
from tests.console.ui import blocks, rows

POLL = {"HX-Request": "true"}
PAGE_QUERIES = 10


@pytest.fixture
def running(db: None) -> Run:
    run = rows.run(rows.job())
    rows.attempts(run)
    rows.history(run)
    return run


def ends(**guarantees: str) -> dict[str, Any]:
    """The graph of the flights job whose ends promise less."""
    operators = [{**o, "guarantee": guarantees.get(o["uid"], "exactly-once")} for o in rows.GRAPH["operators"]]
    operators = [{**o, "commits": o["role"] == "sink" or o["uid"] in guarantees} for o in operators]
    return {**rows.GRAPH, "operators": operators}


# ---------------------------------------------------------------- statistics


def test_the_page_counts_and_sums_up(at_console: Client, running: Run) -> None:
    said = blocks.text(at_console.get(f"/jobs/{running.job_id}/checkpoints/statistics/"))
    triggered, completed = running.checkpoints.count(), running.checkpoints.filter(status="completed").count()
    assert triggered == completed + 3
    ends = f"Completed {completed} Failed 1 Aborted 1 Superseded 0 Restored 1"
    assert f"Triggered {triggered} In progress 1 {ends}" in said
    assert f"of the latest {completed} completed" in said
    assert "Measure Min Average p50 p90 p95 p99 Max Duration 0.25 s" in said
    alignment = re.search(r"Longest alignment ([\d.]+ ms) ([\d.]+ m?s) ([\d.]+ m?s)", said)
    assert alignment
    assert alignment[1] != alignment[2], "the minimum and the average"
    assert "the job tolerates any number of failures" in said


def test_the_latest_of_each_kind_leads_to_its_page(at_console: Client, running: Run) -> None:
    restored = running.checkpoints.filter(kind="savepoint", status="completed").earliest("number")
    Attempt.objects.filter(token=running.token).update(restored_checkpoint=restored)
    response = at_console.get(f"/jobs/{running.job_id}/checkpoints/statistics/")
    said = blocks.text(response)
    completed = running.checkpoints.filter(status="completed")
    assert f"Completed {completed.filter(kind='checkpoint').latest('number')}" in said
    assert f"Savepoint {completed.filter(kind='savepoint').latest('number').number}" in said
    assert f"Failed {running.checkpoints.get(reason='expired').number}" in said
    assert re.search(rf"Restored {restored.number} restored \d+ min( \d+ s)? ago", said)
    assert f"savepoint, by attempt 2 (token {running.token}) of run {running.pk}" in said
    assert f'id="latest-restored" href="/checkpoints/{restored.pk}/"' in response.content.decode()


def test_failures_stand_by_reason_with_the_newest(at_console: Client, running: Run) -> None:
    expired = running.checkpoints.get(reason="expired")
    rows.checkpoint(running, 300, status="failed", reason="declined_task_not_ready", detail="join/0: not yet")
    said = blocks.text(at_console.get(f"/jobs/{running.job_id}/checkpoints/statistics/"))
    assert f"Expired 1 {expired.number} {rows.LATE}" in said
    assert "Declined task not ready 1 300 join/0: not yet" in said
    assert "Counts towards the limit" not in said, "this job has no limit"


def test_failures_of_a_job_with_a_limit_say_whether_they_count(at_console: Client) -> None:
    run = rows.run(rows.job(version={"settings": msgspec.to_builtins(JobSettings(tolerable_failed_checkpoints=3))}))
    rows.checkpoint(run, 1, status="failed", reason="expired", detail="join/0: late")
    rows.checkpoint(run, 2, status="failed", reason="declined_task_not_ready", detail="join/0: not yet")
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/checkpoints/statistics/"))
    assert "Expired 1 yes 1 join/0: late" in said
    assert "Declined task not ready 1 no 2 join/0: not yet" in said


def test_one_run_may_be_chosen(at_console: Client) -> None:
    job = rows.job()
    ended = rows.run(job, "finished")
    rows.checkpoint(ended, 1)
    now = rows.run(job)
    rows.checkpoint(now, 2)
    rows.checkpoint(now, 3)
    path = f"/jobs/{job.pk}/checkpoints/statistics/"
    assert "Triggered 3 " in blocks.text(at_console.get(path))
    assert "Triggered 1 " in blocks.text(at_console.get(path, {"run": ended.pk}))
    assert "Triggered 3 " in blocks.text(at_console.get(path, {"run": "the last"}))
    assert at_console.get(path, {"run": 99_999}).status_code == 404


def test_a_job_that_never_ran_says_what_comes(at_console: Client) -> None:
    said = blocks.text(at_console.get(f"/jobs/{rows.job().pk}/checkpoints/statistics/"))
    assert "They appear after the first completed checkpoint" in said
    assert "No checkpoint has failed." in said
    assert "Completed checkpoint – never" in said


def test_a_poll_brings_the_same_block_also_after_the_run(at_console: Client, running: Run) -> None:
    path = f"/jobs/{running.job_id}/checkpoints/statistics/"
    page, poll = at_console.get(path), at_console.get(path, headers=POLL)
    assert blocks.live(poll) == blocks.live(page)
    assert blocks.swapped(poll) == set(blocks.live(page)) == {"maintenance", "outage", "statistics"}
    assert (poll.status_code, "data-poll" in page.content.decode()) == (200, True)
    Run.objects.update(state="finished")
    assert at_console.get(path, headers=POLL).status_code == 200
    assert "data-poll" in at_console.get(path).content.decode()


def test_the_page_takes_the_same_few_queries_for_a_long_history(at_console: Client, running: Run) -> None:
    with CaptureQueriesContext(connection) as counted:
        at_console.get(f"/jobs/{running.job_id}/checkpoints/statistics/")
    assert len(counted) == PAGE_QUERIES


def test_a_version_that_is_older_than_a_setting_has_its_default(at_console: Client) -> None:
    run = rows.run(rows.job(version={"settings": {"checkpoint_interval_ms": 5000}}))
    for path in (
        f"/jobs/{run.job_id}/checkpoints/statistics/",
        f"/jobs/{run.job_id}/checkpoints/statistics/?run={run.pk}",
    ):
        assert "the job tolerates any number of failures" in blocks.text(at_console.get(path))


# ---------------------------------------------------------------- the promise


@pytest.mark.parametrize(
    ("graph", "mode", "word", "why"),
    [
        (ends(), "exactly_once", "Exactly once", ""),
        (ends(), "at_least_once", "At least once", "The checkpoint mode is at least once"),
        (ends(parquet="at-least-once"), "exactly_once", "At least once", "Sink parquet publishes records before"),
        (ends(prepared="at-least-once"), "exactly_once", "At least once", "Sink prepared publishes records before"),
        (ends(flights="none"), "exactly_once", "No guarantee", "Source flights cannot rewind to a position"),
    ],
)
def test_a_job_shows_the_weakest_of_mode_sources_and_sinks_and_why(
    at_console: Client, graph: dict[str, Any], mode: str, word: str, why: str
) -> None:
    """S1-01, S1-23, S4-47: exactly once is downgraded before anybody relies on it, with the sentence."""
    job = rows.job(version={"graph": graph, "settings": {"checkpoint_mode": mode, "checkpoint_interval_ms": 5000}})
    for path in (f"/jobs/{job.pk}/", f"/jobs/{job.pk}/checkpoints/statistics/"):
        run = job.runs.first() or rows.run(job)
        said = blocks.text(at_console.get(path))
        assert word in said, path
        assert why in said, path
    assert f"End-to-end guarantee {word}" in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert f"Checkpoints {mode.replace('_', ' ')}, every 5.0 s" in blocks.text(at_console.get(f"/jobs/{job.pk}/"))


def test_a_version_that_is_not_compiled_claims_nothing(at_console: Client) -> None:
    job = rows.job(version={"graph": None, "state": "compiling"})
    assert JobVersion.objects.get().graph is None
    assert "End-to-end guarantee" not in blocks.text(at_console.get(f"/jobs/{job.pk}/"))
