"""What an operator is told at the top of a job's page before anything else."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.test import Client
from django.utils import timezone

from console import formats
from console.health.housekeeping import store_verdicts
from console.jobs.models import Attempt, Job, Run
from console.metrics.models import SubtaskMetrics
from runtime.core.job.lifecycle import RunState
from tests.console.ui import blocks, numbers, rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(operator: Any) -> Run:
    return rows.run(rows.job(), live=rows.live())


def page(at_console: Client, run: Run) -> str:
    """The markup, with plain spaces between numbers and units."""
    return at_console.get(f"/jobs/{run.job_id}/").content.decode().replace("\N{NO-BREAK SPACE}", " ")


def completed_ago(run: Run, seconds: float, number: int = 7) -> None:
    rows.checkpoint(run, number, triggered_at=timezone.now() - timedelta(seconds=seconds))


def test_a_job_whose_checkpoints_all_fail_says_so(at_console: Client, run: Run) -> None:
    """49 of 49 failed and the page showed a job that runs."""
    completed_ago(run, 200)
    for number in (8, 9, 10):
        rows.checkpoint(run, number, status="failed", reason="finalize_failed", detail="No space left on device")
    text = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "No checkpoint has completed for 3 min" in text
    assert "3 failed since then, checkpoint 10 with finalize failed: No space left on device." in text


def test_a_failed_savepoint_is_no_failed_checkpoint(at_console: Client, run: Run) -> None:
    """An overdue checkpoint is named beside it, as the savepoint may hold it up."""
    completed_ago(run, 200)
    rows.checkpoint(run, 8, kind="savepoint", status="failed", reason="expired")
    text = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "No checkpoint has completed for 3 min" in text
    assert "No checkpoint has failed since." in text


@pytest.mark.parametrize(
    ("kind", "seconds", "says"), [("checkpoint", 2, False), ("checkpoint", 60, True), ("savepoint", 2, True)]
)
def test_a_recent_checkpoint_is_no_reason_a_savepoint_commits_nothing(
    at_console: Client, run: Run, kind: str, seconds: float, says: bool
) -> None:
    rows.checkpoint(run, 7, kind=kind, triggered_at=timezone.now() - timedelta(seconds=seconds))
    assert ("No checkpoint has completed for" in page(at_console, run)) is says


def test_a_run_that_has_ended_or_has_just_begun_owes_no_checkpoint(at_console: Client, run: Run) -> None:
    Run.objects.update(started_at=timezone.now() - timedelta(seconds=30))
    assert "No checkpoint has completed" not in page(at_console, run)
    Run.objects.update(started_at=timezone.now() - timedelta(hours=1), state=RunState.FINISHED)
    assert "No checkpoint has completed" not in page(at_console, run)


def test_storage_that_is_waited_for_is_named_with_the_next_try(at_console: Client, run: Run) -> None:
    now = timezone.now()
    next_at = (now + timedelta(seconds=40)).timestamp() * 1000
    detail = {"code": "outage", "message": "/out: No space left", "operator": "parquet", "tries": 4, "next_at": next_at}
    Attempt.objects.create(run=run, token=9_001, started_at=now, ended_at=now, outcome="failed", detail=detail)
    point = rows.checkpoint(run, 7, triggered_at=now)
    assert "Waiting for storage" not in page(at_console, run), "a checkpoint has completed since"
    point.delete()
    Run.objects.update(state=RunState.RESTARTING)
    text = page(at_console, run)
    assert (
        "Waiting for storage or a service: <code>parquet</code>. /out: No space left. Failed 4 times in a row; "
        "the next attempt is in" in text
    )
    Attempt.objects.create(run=run, token=9_002, started_at=now, ended_at=now, outcome="failed", detail={"code": "x"})
    assert "Waiting for storage" not in page(at_console, run)


def test_slots_above_their_memory_are_named_while_the_run_runs_between_failures(at_console: Client, run: Run) -> None:
    now = timezone.now()
    detail = {"code": "slot-out-of-memory", "message": "Slot 1 on host h uses 612 MB of memory.", "tries": 3}
    ended: dict[str, Any] = {"started_at": now, "ended_at": now, "outcome": "failed", "detail": detail}
    attempt = Attempt.objects.create(run=run, token=9_001, **ended)
    text = page(at_console, run)
    assert "Slot 1 on host h uses 612 MB of memory. 3 consecutive attempts have failed like this." in text
    Attempt.objects.filter(pk=attempt.pk).update(ended_at=now - timedelta(minutes=11))
    assert "consecutive attempts" not in page(at_console, run), "it has run for long since"


@pytest.mark.parametrize(
    ("strategy", "said"),
    [({"restart_strategy": "fixed_delay", "restart_attempts": 5}, "restart 3 of 5"), ({}, "restart 3")],
)
def test_a_restart_shows_its_number_and_why_other_operations_are_refused(
    at_console: Client, strategy: dict[str, Any], said: str
) -> None:
    run, now = rows.run(rows.job(version={"settings": {"checkpoint_interval_ms": 5_000, **strategy}})), timezone.now()
    detail = {"code": "attempt-failed", "message": "slot 1 was lost", "failures": 3}
    Attempt.objects.create(run=run, token=9_001, started_at=now, ended_at=now, outcome="failed", detail=detail)
    assert "restart 3" not in page(at_console, run)
    Run.objects.update(state=RunState.RESTARTING)
    response = at_console.get(f"/jobs/{run.job_id}/")
    assert f"Restarting {said} for" in blocks.text(response)
    assert f"and {said} is under way" in blocks.text(response)
    refused = blocks.live(response)["refused-acts"]
    assert 'Drain and finish</button> <span class="visually-hidden">: </span>The run is restarting' in refused


def test_operators_of_the_same_name_are_named_with_their_uids(at_console: Client, operator: Any) -> None:
    twins = [{**node, "name": "parse" if node["uid"] in ("prepared", "join") else node["name"]}
             for node in rows.GRAPH["operators"]]  # fmt: skip
    run = rows.run(rows.job(version={"graph": {**rows.GRAPH, "operators": twins}}))
    numbers.backpressure(run, "join", ("flights", "prepared"), timezone.now())
    said = page(at_console, run)
    assert "Backpressure from <code>parse (join)</code>, which is 100 % busy; 2 operators wait for it" in said
    assert "make the code of <code>parse (join)</code> cheaper" in said


def test_an_unreadable_manifest_is_named(at_console: Client, run: Run) -> None:
    Run.objects.update(live=rows.live(unreadable=["savepoint-5-40"]))
    assert "The manifest of savepoint-5-40 cannot be read" in page(at_console, run)


def test_the_graph_and_its_table_mark_the_root_of_backpressure_and_the_operators_that_wait(
    at_console: Client, run: Run
) -> None:
    numbers.backpressure(run, "window", ("flights", "prepared", "join"), timezone.now())
    contents = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))
    assert re.search(r'<g class="node operator attention"[^>]*><title>sessions,[^<]*, slow</title>', contents["graph"])
    assert '<text class="mark attention" x="17" y="-6">slow</text>' in contents["graph"]
    assert contents["graph"].count(">waits for sessions</text>") == 3
    assert "sessions: slow." in contents["graph"], "in the description"
    assert contents["operators"].count('<span class="word">waits for sessions</span>') == 3
    assert contents["operators"].count('<span class="word">slow</span>') == 1


def test_a_compact_graph_marks_operators_too(at_console: Client, operator: Any) -> None:
    run = numbers.wide_run()
    numbers.backpressure(run, "model-score", ("sessions", "basket-features"), timezone.now())
    graph = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["graph"]
    assert re.search(r'<text class="mark fine attention"[^>]*>slow</text>', graph)
    assert graph.count(", waits for model score</title>") == 2


def test_the_operator_that_failed_a_run_is_marked(at_console: Client, operator: Any) -> None:
    failure = {"code": "user-error", "message": "KeyError: 'x'", "detail": {"operator": "join"}}
    run = rows.run(rows.job(), "failed", failure=failure)
    graph = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["graph"]
    assert graph.count('<text class="mark failed" x="17" y="-6">failed</text>') == 1
    assert "join airlines: failed." in graph


@pytest.mark.parametrize(("seconds", "is_silent"), [(2, False), (40, True)])
def test_acts_of_a_silent_job_master_say_that_they_wait(
    at_console: Client, run: Run, seconds: int, is_silent: bool
) -> None:
    Run.objects.update(live_at=timezone.now() - timedelta(seconds=seconds))
    acts = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["acts"]
    assert ("The job master has not reported for" in acts) is is_silent
    assert 'id="do-savepoint"' in acts, "the request is kept for the master that continues the run"
    page = blocks.text(at_console.get(f"/jobs/{run.job_id}/stop/"))
    assert bool(re.search(r"The job master has not reported for 4\d s\. The operation waits", page)) is is_silent


def test_a_restart_lasts_since_the_attempt_failed_on_the_page_and_in_the_list(at_console: Client, run: Run) -> None:
    """Not since the run began, three hours ago."""
    assert "for 3 h 12 min" in blocks.text(at_console.get("/jobs/"))
    now = timezone.now()
    Attempt.objects.create(
        run=run, token=9_001, started_at=run.created_at, ended_at=now - timedelta(seconds=95), outcome="failed"
    )
    Attempt.objects.create(run=run, token=9_002, started_at=now, outcome="")
    Run.objects.update(state=RunState.RESTARTING)
    for path in ("/jobs/", f"/jobs/{run.job_id}/"):
        said = blocks.text(at_console.get(path))
        assert re.search(r"Restarting(, needs attention)? for 1 min \d+ s", said), path


def test_a_drain_lasts_since_it_was_requested(at_console: Client, run: Run) -> None:
    Run.objects.update(state=RunState.DRAINING)
    rows.operation(run.job, "drain", "running", run=run)
    for path in ("/jobs/", f"/jobs/{run.job_id}/"):
        assert re.search(r"for 4\d s", blocks.text(at_console.get(path))), path


@pytest.mark.parametrize(("failed", "word"), [(0, "Running"), (1, "Running, needs attention"), (3, "Running, failing")])
def test_the_list_the_cluster_and_the_pages_of_job_and_run_have_the_same_word(
    at_console: Client, run: Run, failed: int, word: str
) -> None:
    completed_ago(run, 200 if failed else 2)
    for number in range(8, 8 + failed):
        rows.checkpoint(run, number, status="failed", reason="finalize_failed")
    store_verdicts()
    for path in ("/jobs/", "/cluster/", f"/jobs/{run.job_id}/", f"/runs/{run.pk}/"):
        page = at_console.get(path).content.decode()
        assert f'<span class="word">{word}</span>' in page, path


@pytest.mark.parametrize("reports", [True, False])
def test_old_numbers_say_so_and_keep_the_last_known_sickness(at_console: Client, reports: bool) -> None:
    """The history has stopped 4 minutes ago, with or without the job master: head, graph and list tell."""
    slow, old = numbers.slow_run(), timedelta(minutes=4)
    SubtaskMetrics.objects.update(at=F("at") - old)
    at = timezone.now() - old
    Run.objects.update(live_at=timezone.now() if reports else at)
    store_verdicts()
    job, listed = (blocks.text(at_console.get(path)) for path in (f"/jobs/{slow.job_id}/", "/jobs/"))
    cause = "The numbers of the subtasks are 4 min" if reports else "The job master has not reported for 4 min"
    behind = "flights falls behind: it reads 11 k/s of its usual 8"
    moment = rf"{at:%Y-%m-%d} \d\d:\d\d:\d\d UTC"
    for said in (job, listed):
        assert f"Running, {'needs attention' if reports else 'failing'}" in said
        assert cause in said
        assert re.search(rf"{cause}[^.]*{moment}", said)
    assert re.search(rf"Last known, 4 min( \d s)? ago \({moment}\): {behind}", job)
    assert f"Last known: {behind}" in listed
    assert job.count(behind) == 1
    assert re.search(rf"marks as of {moment}", job)
    assert ("old numbers" in job) is not reports
    (line,) = at_console.get("/jobs/").context["lines"]
    assert (line.flow is not None) is reports, "an old rate is no rate"


@pytest.mark.parametrize("path", ["/jobs/", "/cluster/", "/jobs/{job}/", "/runs/{run}/"])
def test_a_run_whose_lease_is_lost_never_looks_well(at_console: Client, run: Run, path: str) -> None:
    """The reconciler took the lease, which requeues the run; or it could not, and the lease stays expired."""
    completed_ago(run, 2)
    now = timezone.now()
    where = path.format(job=run.job_id, run=run.pk)

    def lost(**columns: Any) -> str:
        Run.objects.update(**columns)
        store_verdicts()
        return blocks.text(at_console.get(where))

    assert "lost" not in lost(observed_at=now, observed_since=now - timedelta(seconds=1), observed_beat=0)
    assert "Running, needs attention" in lost(observed_since=now - timedelta(seconds=6)), "a fail-over is under way"
    assert "Running, failing" in lost(observed_since=now - timedelta(seconds=60))
    attempt = Attempt.objects.create(run=run, token=9_001, started_at=now, ended_at=now, outcome="lost")
    said = lost(state=RunState.QUEUED)
    if path != "/cluster/":
        assert "Waiting for a worker, needs attention" in said
        Attempt.objects.filter(pk=attempt.pk).update(ended_at=now - timedelta(seconds=11))
        said = lost()
        assert "Waiting for a worker, failing" in said
    if "job" in path:
        assert "The lease of the run's worker was lost at" in said
        assert "continues from checkpoint 7" in said


def test_a_job_that_falls_behind_says_so_first_with_the_operation_that_helps(at_console: Client) -> None:
    """S1: its page named slow checkpoints, and advised to take them less often: a recovery then goes back further."""
    slow = numbers.slow_run()
    response = at_console.get(f"/jobs/{slow.job_id}/")
    said = response.content.decode().replace("\N{NO-BREAK SPACE}", " ")
    head = blocks.live(response)["health"]
    assert "<code>flights</code> falls behind: it reads 11 k/s of its usual 8" in head
    assert "Running, needs attention for under 1 s · running for 3 h 12 min" in blocks.text(response), "not for hours"
    lags = response.context["timeline"].numbers["processing_lag_ms"]
    lag = formats.duration([value for value in lags if value is not None][-1])
    assert f"the watermark is {lag} behind the clock; it waits for <code>join airlines</code>, which is" in head
    assert f'href="/jobs/{slow.job_id}/rescale/">Rescale the job…' in head
    assert said.count("Rescale the job…") == 1
    assert re.search(r"Checkpoints take 38 s, \d times the interval and \d\d % of the time-out: start delay", said)
    assert "Relieve <code>join airlines</code>." in said
    assert "less often" not in said


def test_a_rescale_is_offered_only_while_it_is_possible(at_console: Client) -> None:
    slow = numbers.slow_run()
    Run.objects.filter(pk=slow.pk).update(state=RunState.RESTARTING)
    said = page(at_console, slow)
    assert "Checkpoints take 38 s" in said
    assert "Rescale the job…" not in said


def test_a_failure_before_the_first_checkpoint_goes_back_to_the_snapshot_of_the_run(at_console: Client) -> None:
    first = rows.run(rows.job(), "stopped")
    snapshot = rows.checkpoint(first, 7, "stop")
    run = rows.run(first.job, restore_checkpoint=snapshot, live=rows.live())
    path = f"/jobs/{run.job_id}/"
    assert "If it failed now back to the snapshot that it restored," in blocks.text(at_console.get(path))
    Run.objects.filter(pk=run.pk).update(restore_checkpoint=None, restore_path="/moved/savepoint-7")
    assert "If it failed now back to the snapshot that it restored," in blocks.text(at_console.get(path))
    Run.objects.filter(pk=run.pk).update(restore_path="")
    assert "If it failed now back to the start," in blocks.text(at_console.get(path))


def oldest(said: str) -> str:
    match = re.search(r"Oldest restore point (\w+ \d+)", said)
    return match[1] if match else ""


def test_the_oldest_restore_point_has_files_and_satisfies_the_policy(at_console: Client, run: Run) -> None:
    now = timezone.now()
    for number, kind in ((3, "checkpoint"), (5, "savepoint"), (9, "checkpoint")):
        rows.checkpoint(run, number, kind=kind, triggered_at=now - timedelta(hours=12 - number))
    path = f"/jobs/{run.job_id}/"
    assert oldest(blocks.text(at_console.get(path))) == "checkpoint 3"
    run.checkpoints.filter(number=3).update(discarded_at=now)
    assert oldest(blocks.text(at_console.get(path))) == "savepoint 5"
    run.checkpoints.filter(number=9).update(review_state="reviewed")
    Job.objects.update(review_policy="refuse")
    assert oldest(blocks.text(at_console.get(path))) == "checkpoint 9"
    run.checkpoints.update(discarded_at=now)
    assert oldest(blocks.text(at_console.get(path))) == ""


def test_the_table_of_operators_has_the_skew_as_a_number(at_console: Client, run: Run) -> None:
    numbers.record(run, hours=0.2, fine_minutes=2, weight=5)
    table = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["operators"]
    cells = re.findall(r'anywhere">([\w ]+)<(.*?)</tr>', table)
    skews = {name: re.findall(r'skew</abbr> <span class="q">([\d.]+)', cell) for name, cell in cells}
    assert skews["sessions"] == ["1.7"], "one of two subtasks has five of six records"
    assert skews["join airlines"] == ["1.0"]
    assert skews["airlines"] == [], "a single subtask"
    over_rest = at_console.get(f"/api/v1/runs/{run.pk}/").json()["skew"]
    assert {uid: f"{skew:.1f}" for uid, skew in over_rest.items() if uid in ("window", "join", "airlines")} == {
        "window": "1.7", "join": "1.0",
    }  # fmt: skip
    Run.objects.filter(pk=run.pk).update(state="stopped")
    assert at_console.get(f"/api/v1/runs/{run.pk}/").json()["skew"] == {}
