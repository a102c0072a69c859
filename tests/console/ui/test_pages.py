"""The pages that show: what they say, who may see them, and that a poll brings the same blocks."""

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console import formats
from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.health.housekeeping import store_verdicts
from console.jobs.models import JobVersion, Pipeline, Run
from tests.console.ui import blocks, rows

POLL = {"HX-Request": "true"}
PAGE_QUERIES = 10
REPEATED_QUERIES = 6  #: rows are shared; plots, causes and states come from the cache of fragments


# ---------------------------------------------------------------- who may


#: Pages and rows that a test without rows lacks.
ABSENT = ("/jobs/99/", "/jobs/99/checkpoints/", "/checkpoints/99/", "/checkpoints/99/state/", "/state-queries/99/",
          "/operations/00000000-0000-0000-0000-000000000000/")  # fmt: skip
SHOWING = ("/jobs/", "/jobs/1/", "/jobs/1/checkpoints/", "/checkpoints/1/", "/operations/")


def test_strangers_are_sent_to_the_login(stranger: Client) -> None:
    """A tab that was signed out is told at its next poll."""
    asking = ("/jobs/new/", "/jobs/1/versions/new/", *(f"/jobs/1/{act}/" for act in ("stop", "drain", "cancel")))
    for path in (*SHOWING, *ABSENT, *asking, "/jobs/1/restore/", "/state-queries/1/csv/"):
        response = stranger.get(path)
        assert (response.status_code, response.headers["Location"]) == (302, f"/login/?next={path}")
    for path in (*SHOWING, "/jobs/1/restore/", "/state-queries/1/"):
        assert stranger.get(path, headers=POLL).status_code == 401, path


def test_strangers_may_not_act(stranger: Client) -> None:
    job = rows.job()
    run = rows.run(job)
    for act in ("start", "savepoint", "stop", "drain", "cancel", "restore"):
        assert stranger.post(f"/jobs/{job.pk}/{act}/").status_code == 302, act
    assert not job.operations.exists()
    assert Run.objects.get().state == run.state


def test_pages_that_show_refuse_to_be_posted_to(at_console: Client) -> None:
    for path in SHOWING:
        assert at_console.post(path).status_code == 405, path


def test_what_does_not_exist_is_said_to_not_exist(at_console: Client) -> None:
    for path in ABSENT:
        response = at_console.get(path)
        assert response.status_code == 404, path
        assert "Page not found" in blocks.text(response), path


def test_every_page_carries_a_strict_policy_and_a_request_id(at_console: Client) -> None:
    """The id is shown with errors only."""
    response = at_console.get("/jobs/")
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Request-ID"] not in blocks.text(response)
    refused = at_console.post(f"/jobs/{rows.job().pk}/rescale/", {"parallelism": 0})
    for error, status in ((at_console.get("/jobs/99/"), 404), (refused, 422)):
        assert error.status_code == status
        assert f"Request {error.headers['X-Request-ID']}" in blocks.text(error)


# ---------------------------------------------------------------- the page of a job


@pytest.fixture
def running(db: None) -> Run:
    run = rows.run(rows.job())
    rows.attempts(run)
    rows.history(run)
    return run


def test_lists_do_not_load_what_they_do_not_draw(at_console: Client, running: Run) -> None:
    store_verdicts()  # else a page judges the run itself
    with CaptureQueriesContext(connection) as counted:
        at_console.get("/jobs/")
        at_console.get(f"/jobs/{running.job_id}/", headers=POLL)
    statements = [query["sql"].replace('jsonb_array_length("weir_checkpoint"."operators")', "") for query in counted]
    read = [sql for sql in statements if '."operators"' in sql]
    assert len(read) == 1, "of the newest checkpoint, for the sizes of state"
    assert '"weir_checkpoint"."operators"' not in read[0], "of a single row, as a fact of the run"
    live = [query["sql"] for query in counted if '"weir_run"."live"' in query["sql"]]
    assert len(live) == 2, "of the listed runs, and of the latest one of the job"


def test_the_page_of_a_job_takes_the_same_few_queries_for_a_long_history(
    at_console: Client, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one moment: blocks are rendered anew twice a minute, plots every 5 s."""
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)
    monkeypatch.setattr("console.ui.live.revision.time", SimpleNamespace(time=now.timestamp))
    with CaptureQueriesContext(connection) as counted:
        at_console.get(f"/jobs/{running.job_id}/")
    assert len(counted) == PAGE_QUERIES
    with CaptureQueriesContext(connection) as counted:
        at_console.get(f"/jobs/{running.job_id}/")
    assert len(counted) == REPEATED_QUERIES


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/jobs/{job}/checkpoints/", 7), ("/jobs/{job}/restore/", 10), ("/jobs/{job}/rescale/", 12),
        ("/jobs/{job}/restore/?checkpoint={oldest}", 12),
        ("/operations/", 3),
        ("/runs/{run}/", 9), ("/checkpoints/{checkpoint}/", 10), ("/checkpoints/{savepoint}/", 12),
        ("/jobs/{job}/history.csv", 10),
    ],
)  # fmt: skip
def test_pages_take_few_queries(at_console: Client, running: Run, path: str, most: int) -> None:
    newest = running.checkpoints.filter(status="completed").first()
    savepoint = running.checkpoints.filter(status="completed", kind="savepoint").first()
    checkpoints = running.checkpoints.filter(status="completed", kind="checkpoint", discarded_at=None)
    oldest = checkpoints.earliest("number")
    assert newest is not None
    assert savepoint is not None
    rows.operation(running.job, "start")
    store_verdicts()  # else a page judges the run itself
    at = path.format(job=running.job_id, run=running.pk, checkpoint=newest.pk, savepoint=savepoint.pk, oldest=oldest.pk)
    with CaptureQueriesContext(connection) as counted:
        assert at_console.get(at).status_code == 200
    assert len(counted) <= most


def test_a_running_job_shows_graph_checkpoints_and_slots(at_console: Client, running: Run) -> None:
    response = at_console.get(f"/jobs/{running.job_id}/")
    page, said = response.content.decode(), blocks.text(response)
    assert '<svg class="graph ranks-5" role="group" aria-labelledby="graph-title graph-desc"' in page
    assert '<title id="graph-title">Job graph of flights-delays</title>' in page
    assert "checkpoint 214, 6 of 10 acknowledged" in said
    assert "finished" in blocks.live(response)["graph"]
    assert "213 checkpoint Completed" in said
    assert "48213" in said
    assert "log: /scratch/app-20261122121314-0000/4/stderr" in said
    assert "412 MiB of 512 MiB" in said
    assert "Late records 0" in said
    assert "slot 1 was lost: the other side closed the connection" in said


def test_micro_batches_are_counted_by_cause_with_their_mean_size(at_console: Client, running: Run) -> None:
    """S3-14."""
    assert "Mean rows per batch" not in blocks.text(at_console.get(f"/jobs/{running.job_id}/"))
    counters = {"batches_by_size": 3, "batches_by_barrier": 1, "batches_by_time": 0, "batched_rows": 350}
    Run.objects.filter(pk=running.pk).update(live=rows.live(counters=counters))
    said = blocks.text(at_console.get(f"/jobs/{running.job_id}/"))
    assert "Batches by size 3" in said
    assert "Batches by barrier 1" in said
    assert "Mean rows per batch 87.5" in said


def test_a_checkpoint_that_has_ended_since_the_last_numbers_is_not_under_way(at_console: Client, running: Run) -> None:
    """Table and picture must not contradict each other: completed here, five of ten there."""
    Checkpoint.objects.filter(number=214).update(status="completed", completed_at=timezone.now(), duration_ms=300)
    assert "acknowledged" not in blocks.text(at_console.get(f"/jobs/{running.job_id}/"))


def test_parameters_are_named_and_ordered_as_in_their_form(at_console: Client) -> None:
    job = rows.job(version={"params": {**rows.PARAMS, "gone_since": [1, None]}})
    schema = {**rows.SCHEMA, "x-order": ["output", "on_malformed", "input", "max_disorder_ms"]}
    schema["properties"] = {**schema["properties"], "output": {"type": "string", "title": "Results"}}
    Pipeline.objects.update(schema=schema)
    said = blocks.live(at_console.get(f"/jobs/{job.pk}/"))["version"]
    params = re.findall(r"<dt>([^<]+)</dt><dd class=\"mono\">([^<]+)</dd>", said)
    assert params == [
        ("Results", "/data/delays"), ("On malformed", "fail"), ("Input", "/data/flights"),
        ("Max disorder (ms)", "500 (0.50 s)"), ("Gone since", "[1, null]"),
    ]  # fmt: skip


def test_the_table_says_the_same_as_the_picture(at_console: Client, running: Run) -> None:
    table = blocks.live(at_console.get(f"/jobs/{running.job_id}/"))["operators"]
    for word in (
        "flights",
        "airlines",
        "join airlines",
        "sessions",
        "parquet",
        "hash by carrier, flight",
        "finished",
    ):
        assert word in table


def test_a_poll_brings_the_same_blocks_as_the_page(at_console: Client, running: Run) -> None:
    minute_ago = timezone.now() - timedelta(minutes=1)  # between page and poll, the axis of the present may move on
    path = f"/jobs/{running.job_id}/?until={minute_ago:%Y-%m-%dT%H:%M:%SZ}"
    page, poll = at_console.get(path), at_console.get(path, headers=POLL)
    assert poll.status_code == 200
    assert blocks.live(poll) == blocks.live(page)
    assert blocks.swapped(poll) == set(blocks.live(page))
    assert blocks.swapped(page) == set()
    assert "<html" not in poll.content.decode()
    assert "HX-Request" in poll.headers["Vary"]
    assert "HX-Request" in page.headers["Vary"]


def test_the_page_polls_while_the_run_lives(at_console: Client, running: Run) -> None:
    page = at_console.get(f"/jobs/{running.job_id}/").content.decode()
    assert f'hx-get="/jobs/{running.job_id}/" hx-trigger="poll"' in page


def test_a_job_that_never_ran_says_what_to_do(at_console: Client) -> None:
    """It has one empty panel, not five."""
    said = blocks.text(at_console.get(f"/jobs/{rows.job().pk}/"))
    assert "Never started" in said
    assert "The job has never run. A start runs version 1 at parallelism 2, which needs as many slots," in said
    assert "no metrics yet" in said
    for absent in ("No checkpoints yet", "No restore drill", "No slots", "No attempt yet", "No operations yet"):
        assert absent not in said


def test_a_job_whose_only_version_is_rejected_does_not_look_as_if_it_could_start(at_console: Client) -> None:
    error = {"code": "path-not-allowed", "field": "input", "detail": "/etc is not a folder that jobs may use"}
    said = blocks.text(at_console.get(f"/jobs/{rows.job(version={'state': 'rejected', 'error': error}).pk}/"))
    assert "Never started" not in said
    assert "Rejected version 1" in said
    assert "Version 1 was rejected, input: /etc is not a folder that jobs may use" in said


def test_a_job_whose_first_version_is_being_compiled_has_no_graph_yet(at_console: Client) -> None:
    job = rows.job(version={"state": "compiling", "graph": None})
    response = at_console.get(f"/jobs/{job.pk}/")
    said = blocks.text(response)
    assert "Version 1 is being compiled" in said
    assert "The graph appears once" in said
    assert "Start, Restore: The job has no version that is ready." in said
    assert "hx-get" in response.content.decode()


def test_a_rejected_version_says_what_is_wrong_and_where(at_console: Client) -> None:
    error = {"code": "bad-parallelism", "field": "window", "detail": "parallelism must lie between 1 and 128"}
    job = rows.job(version={"state": "rejected", "graph": None, "error": error})
    said = blocks.text(at_console.get(f"/jobs/{job.pk}/"))
    assert "Version 1 was rejected, window: parallelism must lie between 1 and 128" in said


@pytest.mark.parametrize(
    ("region", "sentence"),
    [
        (
            {"slots": 1},
            "After a failure a slot restarts alone, and the others run on: no step sends rows to another slot.",
        ),
        (
            {"slots": 2, "source": "words", "target": "counts"},
            "After a failure all slots restart together: words sends rows to counts in other slots.",
        ),
        (
            {"slots": 2, "source": "words", "target": "counts", "reason": "unnumbered-rows"},
            (
                "words sends rows to counts in other slots, and its rows have no numbers, as its source or a "
                "step before it may not repeat them."
            ),
        ),
        (
            {"slots": 2, "source": "words", "target": "counts", "reason": "feeds-restarted", "kept": ["counts", "out"]},
            "in part: counts, out keep state in the slots that have not failed, and drop rows that are repeated.",
        ),
        ({"slots": 2, "source": "out"}, "After a failure all slots restart together: out restarts all its subtasks."),
        (None, ""),
    ],
)
def test_a_running_job_says_what_a_failure_restarts(
    at_console: Client, running: Run, region: dict[str, Any] | None, sentence: str
) -> None:
    """S4-44: before it happens, and why."""
    live = running.live or {}
    assert len(live["slots"]) == 2
    running.live = {**live, "region": region}
    running.save()
    text = blocks.text(at_console.get(f"/jobs/{running.job_id}/"))
    assert sentence in text
    assert ("After a failure" in text) == bool(sentence)


def test_a_run_that_waits_for_slots_says_for_what(at_console: Client) -> None:
    slots = {"wanted": 3, "there": 1, "held_by": "held by flights (4); the cluster has 6 cores on 3 workers"}
    run = rows.run(rows.job(), "waiting", live={"waiting": slots, "restarts": 0}, live_at=timezone.now())
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "Waiting for slots: 1 of 3 are available; held by flights (4); the cluster has 6 cores on 3 workers." in said
    assert "Cancel" in said
    assert "Waiting for slots" in blocks.text(at_console.get("/jobs/"))


def test_a_failed_run_tells_its_story(at_console: Client) -> None:
    story = ["BarrierArrived(41)", "Aligned(41)"]
    failure = {"code": "final", "message": "division by zero", "operator": "window", "story": story, "subtask": 1}
    run = rows.run(
        rows.job(version={"settings": rows.settings(restart_strategy="fixed_delay")}), "failed", failure=failure
    )
    rows.attempts(run)
    rows.checkpoint(run, 40)
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert (
        f"Why run {run.pk} failed final Incident division by zero Not restarted: a restart would repeat this error. "
        "The run had restarted 1 time; its limit is 10 without a completed checkpoint in between." in said
    )
    assert "Operator sessions" in said
    assert "The last 2 events before the failure BarrierArrived(41) Aligned(41)" in said
    assert '"subtask": 1' in said
    assert "Then restore from checkpoint 40." in said


def test_a_failure_is_shown_whatever_its_detail(at_console: Client) -> None:
    run = rows.run(rows.job(), "failed")
    for detail in (None, "a line of text", ["a", "list"], {"story": "one line"}, {"operator": "window", "exit": -9}):
        Run.objects.update(failure={"code": "died", "message": "exit code 137", "detail": detail})
        assert "exit code 137" in blocks.text(at_console.get(f"/jobs/{run.job_id}/")), detail


def test_a_failed_run_without_a_record_says_so(at_console: Client) -> None:
    run = rows.run(rows.job(), "failed", failure=None)
    assert "No reason was recorded." in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))


def test_the_page_says_when_its_numbers_were_seen(at_console: Client) -> None:
    run = rows.run(rows.job(), live_at=timezone.now() - timedelta(seconds=4))
    response = at_console.get(f"/jobs/{run.job_id}/")
    assert "as of 4 s ago" in blocks.text(response)
    assert 'data-stale="6"' in response.content.decode()


def test_live_numbers_of_another_shape_do_not_break_the_page(at_console: Client) -> None:
    run = rows.run(rows.job(), live={"operators": "none"})
    assert at_console.get(f"/jobs/{run.job_id}/").status_code == 200


def test_the_checkpoint_table_pages_by_number(at_console: Client, running: Run) -> None:
    path = f"/jobs/{running.job_id}/"
    first = at_console.get(path)
    assert 'href="?before=205' in first.content.decode()
    second = blocks.live(at_console.get(path + "?before=205"))
    assert ">204<" in second["checkpoints"]
    assert ">205<" not in second["checkpoints"]
    assert "Newest" in second["pager"]


def test_a_page_that_makes_no_sense_is_the_first(at_console: Client, running: Run) -> None:
    for before in ("x", "-1", "9" * 30, "²"):
        contents = blocks.live(at_console.get(f"/jobs/{running.job_id}/?before={before}"))
        assert ">214<" in contents["checkpoints"], before


def test_a_failed_checkpoint_says_why_in_the_table(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 3, status="failed", reason="task_finished_while_triggered")
    assert "Failed task finished while triggered" in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("ready", "Version 2 is newer; a start or restore uses it."),
        ("rejected", "Version 2 is newer, but rejected; a start or restore uses the newest ready version."),
        ("compiling", "Version 2 is newer, but compiling; a start or restore uses the newest ready version."),
    ],
)
def test_a_newer_version_is_announced(at_console: Client, running: Run, state: str, said: str) -> None:
    JobVersion.objects.create(job=running.job, number=2, parallelism=3, state=state, graph=rows.GRAPH)
    assert said in blocks.text(at_console.get(f"/jobs/{running.job_id}/"))


def test_the_graph_stands_at_the_parallelism_of_the_run(at_console: Client) -> None:
    """The version was compiled for 2; the run was restored at 3. The airlines never have more than one."""
    run = rows.run(rows.job(), parallelism=3)
    drawn = at_console.get(f"/jobs/{run.job_id}/").context["picture"]
    assert {node.uid: node.parallelism for node in drawn.nodes} == {
        "flights": 3, "prepared": 3, "airlines": 1, "join": 3, "window": 3, "parquet": 3
    }  # fmt: skip


def test_a_run_that_ended_without_a_checkpoint_does_not_promise_one(at_console: Client) -> None:
    run = rows.run(rows.job(), "failed")
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    assert "No checkpoint was taken. The first checkpoint is due after a run's checkpoint interval, 5.0 s." in said


# ---------------------------------------------------------------- the page of a checkpoint


def test_a_checkpoint_shows_its_operators_and_phases(at_console: Client, running: Run) -> None:
    checkpoint = Checkpoint.objects.get(number=213)
    response = at_console.get(f"/checkpoints/{checkpoint.pk}/")
    said = blocks.text(response)
    assert "Checkpoint 213" in said
    assert "Finished operators airlines" in said
    window = next(row for row in checkpoint.operators if row["uid"] == "window")
    start, alignment, sync, stored = (
        formats.duration(window[f"max_{phase}_ms"]) for phase in ("start_delay", "alignment", "sync", "async")
    )
    assert f"sessions window running 2 1.2 MiB 82 KiB {start} {alignment} – {sync} {stored}" in said
    assert f'href="/jobs/{running.job_id}/restore/?checkpoint={checkpoint.pk}"' in response.content.decode()
    assert f'href="/admin/checkpoints/checkpoint/{checkpoint.pk}/change/"' in response.content.decode()
    assert "← 212" in said
    assert "214 →" in said


def test_operators_stand_in_the_order_of_the_graph(at_console: Client) -> None:
    run = rows.run(rows.job())
    checkpoint = rows.checkpoint(run, 1, operators=[*reversed(rows.OPERATORS), {"uid": "gone", "finished": "partly"}])
    response = at_console.get(f"/checkpoints/{checkpoint.pk}/")
    names = [line.uid for line in response.context["lines"]]
    assert names == ["flights", "prepared", "airlines", "join", "window", "parquet", "gone"]
    assert "partly finished" in blocks.text(response)


def test_a_completed_checkpoint_counts_its_subtasks_with_those_that_had_ended(at_console: Client) -> None:
    """One more than were waited for: the airlines had all been read."""
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7, acknowledged=11, subtasks=10)
    said = blocks.text(at_console.get(f"/checkpoints/{checkpoint.pk}/"))
    assert "Subtasks 11" in said
    assert "of 10" not in said


@pytest.mark.parametrize("kind", ["savepoint", "stop", "drain"])
def test_what_a_stop_or_drain_takes_is_called_a_savepoint(at_console: Client, kind: str) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job(), "stopped"), 9, kind=kind)
    said = blocks.text(at_console.get(f"/checkpoints/{checkpoint.pk}/"))
    assert "Savepoint 9" in said
    words = kind if kind == "savepoint" else f"savepoint ({kind})"
    assert f"Kind {words}" in said
    assert "Restore savepoint 9 at parallelism 2" in blocks.text(
        at_console.get(f"/jobs/{checkpoint.job_id}/restore/?checkpoint={checkpoint.pk}")
    )


def test_a_failed_checkpoint_says_why_and_cannot_be_restored(at_console: Client) -> None:
    run = rows.run(rows.job())
    expired: dict[str, Any] = {"status": "failed", "reason": "expired", "detail": "window (1) was silent"}
    checkpoint = rows.checkpoint(run, 9, **expired)
    response = at_console.get(f"/checkpoints/{checkpoint.pk}/")
    assert re.search(r"Expired\. Subtasks 0 and 1 of \S+.* had not acknowledged", blocks.text(response))
    assert "restore-this" not in response.content.decode()
    before = rows.checkpoint(run, 8, acknowledgements={}, **expired)
    assert "Expired: window (1) was silent" in blocks.text(at_console.get(f"/checkpoints/{before.pk}/"))


def test_a_checkpoint_is_polled_after_its_end_too(at_console: Client) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 9, status="in_progress")
    path = f"/checkpoints/{checkpoint.pk}/"
    assert "hx-get" in at_console.get(path).content.decode()
    assert at_console.get(path, headers=POLL).status_code == 200
    Checkpoint.objects.filter(pk=checkpoint.pk).update(status="completed", completed_at=timezone.now())
    assert at_console.get(path, headers=POLL).status_code == 200


def test_a_review_is_shown_with_its_reviewer(at_console: Client, operator: User) -> None:
    review: dict[str, Any] = {"review_state": "waived", "review_note": "Slow disk, known.", "reviewer": operator,
              "reviewed_at": timezone.now()}  # fmt: skip
    checkpoint = rows.checkpoint(rows.run(rows.job()), 9, **review)
    said = blocks.text(at_console.get(f"/checkpoints/{checkpoint.pk}/"))
    assert "Waived" in said
    assert "Slow disk, known. operator" in said
