"""Numbers of an operation before it is confirmed: expected time, bytes, and records that no checkpoint covers."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.metrics.models import SubtaskMetrics
from tests.console.ui import blocks, numbers, rows


def test_the_expected_time_of_a_stop_is_that_of_earlier_stops(at_console: Client) -> None:
    run, now = rows.run(rows.job()), timezone.now()
    for took_s in (2, 4, 9):
        rows.operation(run.job, "stop", created_at=now, ended_at=now + timedelta(seconds=took_s))
    rows.operation(run.job, "stop", "failed", created_at=now, ended_at=now + timedelta(hours=1))
    numbers.record(run, hours=0.1, fine_minutes=1)
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/stop/"))
    assert "Expected time 4.0 s · the last 3 stops of this job took 2.0 s to 9.0 s" in said
    assert re.search(r"In flight [0-9.]+ (B|KiB|MiB) · processed before the savepoint completes", said)


LIVE = {
    "operators": {
        "daily": {"open_results": {"windows": 12_000}},
        "users": {"open_results": {"timers": 7, "author's": 5}},
        "parquet": {"open_results": {"rows": 450}},
        "idle": {"open_results": {"windows": 0}},
    }
}


def test_a_drain_tells_the_results_that_come_early(at_console: Client) -> None:
    run = rows.run(rows.job(), live=LIVE, live_at=timezone.now())
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/drain/"))
    assert "Open windows 12 000 · emitted early, one per key: " in said
    assert re.search(r"Timers 7 · fire early: users(?! 7)", said), "the only operator repeats no number"
    assert "Rows not committed 450 · committed with the savepoint: " in said
    assert "idle" not in said
    assert "author" not in said


@pytest.mark.parametrize(("act", "commits"), [("stop", True), ("savepoint", False)])
def test_a_savepoint_keeps_open_results(at_console: Client, act: str, commits: bool) -> None:
    run = rows.run(rows.job(), live=LIVE, live_at=timezone.now())
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/{act}/"))
    assert "Open windows 12 000 · stay in the savepoint, one per key" in said
    assert ("Rows not committed" in said) is commits


def test_a_cancel_tells_the_records_that_no_checkpoint_covers(at_console: Client) -> None:
    run, now = rows.run(rows.job()), timezone.now()
    rows.checkpoint(run, 213, triggered_at=now - timedelta(seconds=10))
    column = {"index": [0], "records_in": [0], "records_out": [50_000], "busy": [0.5], "backpressured": [0.0],
              "watermark": [7], "in_flight_bytes": [0]}  # fmt: skip
    for number in range(6):
        at = now - timedelta(seconds=5 * (6 - number))
        SubtaskMetrics.objects.create(run_id=run.pk, at=at, token=run.token, operators={"flights": column})
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/cancel/"))
    match = re.search(
        r"Records not covered about (\d+) k · read since checkpoint 213; a restore reads them again", said
    )
    assert match is not None
    assert 90 < int(match[1]) < 200, "as on the page of the job"
    rows.checkpoint(run, 214, kind="savepoint", triggered_at=now - timedelta(seconds=1))
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/cancel/"))
    later = re.search(r"Records not covered about ([0-9 ]+)( k)? · read since savepoint 214", said)
    assert later is not None
    few = int(later[1].replace(" ", "")) * (1_000 if later[2] else 1)
    assert few < int(match[1]) * 1_000 / 2, "counted from the savepoint, as the note says"


@pytest.mark.parametrize(("state", "mode"), [("finished", "streaming"), ("running", "batch")])
def test_a_run_that_has_ended_or_runs_in_batch_has_no_numbers(at_console: Client, state: str, mode: str) -> None:
    run = rows.run(rows.job(version={"graph": {**rows.GRAPH, "mode": mode}}), state)
    rows.checkpoint(run, 213)
    for act in ("stop", "cancel"):
        said = blocks.text(at_console.get(f"/jobs/{run.job_id}/{act}/"))
        assert "Expected time" not in said
        assert "Records not covered" not in said
