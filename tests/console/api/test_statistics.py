"""How the checkpoints of a job have gone: the numbers equal a recount of the rows."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from rest_framework.test import APIClient

from console.checkpoints import services
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import statistics
from console.housekeeping import reconciler
from console.jobs.models import Attempt, Run
from runtime.core.checkpoint.statistics import MAX_SUMMARIZED_CHECKPOINTS, distribution
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import MakeCheckpoint, MakeRun

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    return make_run(RunState.RUNNING, token=1)


def took(ms: int, waits: tuple[float, ...] = ()) -> dict[str, Any]:
    """The facts of a completed checkpoint that took `ms`, with the alignment of each operator."""
    operators = [{"uid": f"o{n}", "max_alignment_ms": wait} for n, wait in enumerate(waits)]
    return {"duration_ms": ms, "size_bytes": ms * 10, "written_bytes": ms * 2, "operators": operators}


def lengthy(run: Run, count: int) -> None:
    """`count` completed ones that took 1, 2, 3, ... ms."""
    checkpoints = [
        Checkpoint(job=run.job, run=run, token=1, number=n, kind="checkpoint", status="completed", **took(n))
        for n in range(1, count + 1)
    ]
    Checkpoint.objects.bulk_create(checkpoints)


def test_what_was_triggered_is_in_progress_completed_or_failed(run: Run, make_checkpoint: MakeCheckpoint) -> None:
    """S2-53."""
    for number, status in enumerate(("completed", "failed", "completed", "in_progress", "completed"), 1):
        make_checkpoint(run, number, status=status)
    counts = statistics(run.job).counts
    assert (counts.triggered, counts.in_progress, counts.completed, counts.failed) == (5, 1, 3, 1)


def test_the_summary_is_that_of_the_completed_rows(run: Run, make_checkpoint: MakeCheckpoint) -> None:
    """S2-53: least, mean, percentiles and most equal a recomputation; the alignment is that of the slowest operator."""
    make_checkpoint(run, 1, **took(100, (0.0, 7.5, 3.0)))
    make_checkpoint(run, 2, **took(300, (2.0,)))
    make_checkpoint(run, 3, **took(200))
    make_checkpoint(run, 4, status="failed", duration_ms=60_000)
    summary = statistics(run.job).summary
    assert summary is not None
    assert summary.checkpoints == 3
    assert summary.duration_ms == distribution([100, 200, 300])
    assert summary.state_bytes == distribution([1_000, 2_000, 3_000])
    assert summary.written_bytes == distribution([200, 400, 600])
    assert summary.alignment_ms == distribution([0, 2.0, 7.5])


def test_a_long_history_is_counted_whole_and_summed_up_by_its_latest(run: Run) -> None:
    lengthy(run, MAX_SUMMARIZED_CHECKPOINTS + 2)
    history = statistics(run.job)
    assert history.counts.completed == MAX_SUMMARIZED_CHECKPOINTS + 2
    assert history.summary is not None
    assert (history.summary.checkpoints, history.summary.duration_ms.least) == (MAX_SUMMARIZED_CHECKPOINTS, 3)


def test_the_latest_of_each_kind_is_told_apart(run: Run, make_checkpoint: MakeCheckpoint) -> None:
    """S2-47: a completed one stands there with its duration."""
    for number, kind, status in [
        (1, "checkpoint", "completed"), (2, "checkpoint", "completed"), (3, "savepoint", "completed"),
        (4, "checkpoint", "failed"), (5, "stop", "failed"), (6, "checkpoint", "in_progress"),
    ]:  # fmt: skip
        make_checkpoint(run, number, kind=kind, status=status, **took(number))
    history = statistics(run.job)
    assert history.latest_completed is not None
    assert history.latest_savepoint is not None
    assert history.latest_failed is not None
    assert (history.latest_completed.number, history.latest_completed.duration_ms) == (2, 2)
    assert (history.latest_savepoint.number, history.latest_failed.number) == (3, 5)


def test_restores_are_attempts_that_began_from_a_checkpoint(run: Run, make_checkpoint: MakeCheckpoint) -> None:
    first = make_checkpoint(run, 1)
    for token, checkpoint in ((1, None), (2, first), (3, first)):
        Attempt.objects.create(run=run, token=token, restored_checkpoint=checkpoint)
    history = statistics(run.job)
    assert history.counts.restored == 2
    assert history.latest_restored is not None
    assert (history.latest_restored.token, history.latest_restored.restored_checkpoint) == (3, first)


def test_failures_are_grouped_by_reason_with_the_newest_of_each(run: Run, make_checkpoint: MakeCheckpoint) -> None:
    """Reasons count towards tolerable failures as in Flink."""
    for number, reason in enumerate(("expired", "declined_task_not_ready", "expired", "of_a_newer_version"), 1):
        make_checkpoint(run, number, status="failed", reason=reason, detail=f"detail {number}")
    groups = [(f.reason, f.number, f.counted, f.newest.detail) for f in statistics(run.job).failures]
    assert groups == [
        ("expired", 2, True, "detail 3"),
        ("declined_task_not_ready", 1, False, "detail 2"),
        ("of_a_newer_version", 1, False, "detail 4"),
    ]


# ---------------------------------------------------------------- over REST


def test_the_api_gives_the_same_numbers(api: APIClient, run: Run, make_checkpoint: MakeCheckpoint) -> None:
    make_checkpoint(run, 1, **took(100))
    make_checkpoint(run, 2, kind="savepoint", **took(300))
    make_checkpoint(run, 3, status="failed", reason="expired", detail="no acknowledgement from sums/1")
    Attempt.objects.create(run=run, token=2, restored_checkpoint=run.checkpoints.get(number=1))
    body = api.get(f"/api/v1/jobs/{run.job_id}/checkpoints/statistics/").json()
    assert body["counts"] == {
        "triggered": 3,
        "in_progress": 0,
        "completed": 2,
        "failed": 1,
        "aborted": 0,
        "superseded": 0,
        "restored": 1,
    }
    assert body["summary"]["checkpoints"] == 2
    assert body["summary"]["duration_ms"] == {
        "least": 100.0, "mean": 200.0, "p50": 200.0, "p90": 280.0, "p95": 290.0, "p99": 298.0, "most": 300.0,
    }  # fmt: skip
    assert [body[f"latest_{kind}"]["number"] for kind in ("completed", "savepoint", "failed")] == [1, 2, 3]
    assert body["latest_restored"]["token"] == 2
    oldest = body["oldest_restore_point"]
    assert (oldest["id"], oldest["number"], oldest["kind"]) == (run.checkpoints.get(number=1).pk, 1, "checkpoint")
    failure = body["failures"][0]
    assert (failure["reason"], failure["number"], failure["counted"]) == ("expired", 1, True)
    assert failure["newest"]["detail"] == "no acknowledgement from sums/1"


def test_the_api_costs_no_query_for_each_row_that_it_shows(
    api: APIClient, run: Run, make_checkpoint: MakeCheckpoint, django_assert_max_num_queries: Any
) -> None:
    for number, reason in enumerate(("expired", "declined", "suspended", "async_failed"), 1):
        make_checkpoint(run, number, status="failed", reason=reason)
    Attempt.objects.create(run=run, token=2, restored_checkpoint=make_checkpoint(run, 5))
    with django_assert_max_num_queries(11):
        api.get(f"/api/v1/jobs/{run.job_id}/checkpoints/statistics/")


def test_the_api_tells_runs_apart_and_refuses_what_is_none(api: APIClient, run: Run, make_run: MakeRun) -> None:
    path = f"/api/v1/jobs/{run.job_id}/checkpoints/statistics/"
    lengthy(run, 3)
    other = make_run(RunState.FINISHED)
    assert api.get(path, {"run": run.pk}).json()["counts"]["completed"] == 3
    assert api.get(path, {"run": other.pk}).json()["summary"] is None
    assert api.get(path, {"run": 0}).status_code == 404
    assert api.get(path, {"run": "last"}).json()["code"] == "invalid-field"
    assert api.get(path, {"runs": 1}).status_code == 400
    assert api.get("/api/v1/jobs/0/checkpoints/statistics/").status_code == 404


# ---------------------------------------------------------------- those that nobody will end


def test_what_a_dead_master_left_in_progress_has_failed(make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> None:
    run = make_run(RunState.RUNNING, token=2)
    make_checkpoint(run, 1, status="in_progress")
    reconciler.reconcile()
    row = run.checkpoints.get()
    assert (row.status, row.reason, row.detail) == (
        "failed", "suspended", "its job master was gone before it completed"
    )  # fmt: skip
    assert row.completed_at is not None


def test_what_is_in_progress_when_a_run_has_ended_has_failed_after_a_moment(
    make_run: MakeRun, make_checkpoint: MakeCheckpoint
) -> None:
    run = make_run(RunState.CANCELED, token=1, ended_at=Now())
    make_checkpoint(run, 1, status="in_progress")
    assert services.fail_orphaned_checkpoints() == 0, "its master may be writing still"
    Run.objects.update(ended_at=Now() - timedelta(seconds=6))
    assert services.fail_orphaned_checkpoints() == 1


def test_what_a_living_master_takes_is_left_alone(run: Run, make_checkpoint: MakeCheckpoint) -> None:
    make_checkpoint(run, 1)
    make_checkpoint(run, 2, status="in_progress")
    assert services.fail_orphaned_checkpoints() == 0
    assert run.checkpoints.get(number=2).status == "in_progress"
