"""The head of the page of a job that restarts or has failed: from where it continues, and when."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.jobs.models import Attempt, Run
from console.metrics.models import Metrics
from console.ui.live import job_rows
from tests.console.ui import blocks, rows
from tests.console.ui.plots.test_timeline import MAX_QUERIES

FAILURE = {"code": "attempt-failed", "message": "slot 1 was lost", "failures": 1}


def read(run: Run, at: datetime, records: int) -> None:
    Metrics.objects.create(
        step_s=5, run_id=run.pk, at=at, operator="", token=1, span_ms=5_000, records_in=records, records_out=0,
        bytes_in=0, bytes_out=0,
    )  # fmt: skip


@pytest.fixture
def restarting(operator: Any) -> Run:
    """A run whose first restart took 27 s, and whose second attempt has failed 6 s ago."""
    now = timezone.now()
    run = rows.run(rows.job(), "restarting", token=3, live=rows.live(None), live_at=now - timedelta(seconds=7))
    for token, failed_s in ((1, 100), (2, 6)):
        ended_at = now - timedelta(seconds=failed_s)
        started_at = ended_at - timedelta(seconds=60)
        Attempt.objects.create(
            run=run, token=token, started_at=started_at, ended_at=ended_at, outcome="failed", detail=FAILURE
        )
    Attempt.objects.create(run=run, token=3, started_at=now - timedelta(seconds=6))
    rows.checkpoint(run, 6, token=1, triggered_at=now - timedelta(seconds=120))
    rows.checkpoint(run, 7, token=2, triggered_at=now - timedelta(seconds=73))
    rows.checkpoint(run, 8, "savepoint", token=2, triggered_at=now - timedelta(seconds=20))
    for age_s, records in ((90, 700_000), (60, 1_100_000), (12, 100_000)):
        read(run, now - timedelta(seconds=age_s), records)
    return run


def head(at_console: Client, run: Run) -> str:
    response = at_console.get(f"/jobs/{run.job_id}/")
    return blocks.text(response).partition("Job graph")[0].replace(" ;", ";")


def test_a_restart_shows_its_checkpoint_the_replay_and_the_time_left(at_console: Client, restarting: Run) -> None:
    """A savepoint is no checkpoint to restart from. Records are those up to the failure."""
    said = head(at_console, restarting)
    match = re.search(
        r"Restarts from checkpoint 7, 1 min 1[3-9] s ago; 1\.2 M records to replay; now: job master and inputs; "
        r"running in about (\d+) s, by the last failure",
        said,
    )
    assert match is not None, said
    assert 10 <= int(match[1]) <= 21, "27 s without the 6 s that have passed"
    assert "Oldest restore point checkpoint 6," in said
    assert "If it failed now" not in said


def test_a_restart_that_takes_longer_than_before_shows_the_usual_time(at_console: Client, restarting: Run) -> None:
    Attempt.objects.filter(token=2).update(ended_at=timezone.now() - timedelta(seconds=40))
    assert "; usually 27 s, by the last failure" in head(at_console, restarting)
    restarting.checkpoints.update(token=1)
    said = head(at_console, restarting)
    assert "now: job master and inputs" in said
    assert "by the last" not in said, "no restart has completed a checkpoint"


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"state": "waiting", "live": {"waiting": {"wanted": 2, "there": 1}}}, "waiting for slots: 1 of 2 available"),
        ({"live": {"slots": [{"index": 0}], "deploying_ms": 9}}, "slots: 1 of 2 connected"),
        (
            {"live": {"slots": [{"index": 0}, {"index": 1}], "deploying_ms": 9, "undeployed_slots": [1]}},
            "operators and restore: 1 of 2 slots deployed",
        ),
        ({"live": {"parallelism": 2}}, "Spark and slots"),
        ({"live": {"launch": {"step": "slots", "wanted": 2, "there": 1}}}, "slots: 1 of 2 connected"),
    ],
)
def test_a_restart_names_the_step_that_is_under_way(
    at_console: Client, restarting: Run, changes: dict[str, Any], step: str
) -> None:
    attempts = Attempt.objects.filter(token=3)
    attempts.update(restored_checkpoint=restarting.checkpoints.get(number=6))
    Run.objects.update(**{"live_at": timezone.now(), **changes})
    said = head(at_console, restarting)
    assert f"; now: {step};" in said
    assert "Restarts from checkpoint 6, 2 min" in said, "recorded by the attempt: checkpoint 7 was damaged"


@pytest.mark.parametrize(
    ("changes", "outcome", "step"),
    [
        ({"state": "queued"}, "failed", "waiting for a worker"),
        ({"live": {"launch": {"step": "spark", "wanted": 2, "there": 0}}}, "failed", "Spark"),
        ({}, "lost", "job master and inputs"),
        ({}, "released", "job master and inputs"),
    ],
)
def test_a_restart_with_a_new_spark_application_is_not_as_short_as_those_within_one(
    at_console: Client, restarting: Run, changes: dict[str, Any], outcome: str, step: str
) -> None:
    """*usually 8.1 s* stood where a new application had to start, which took half a minute."""
    Attempt.objects.filter(token=2).update(outcome=outcome)
    Run.objects.update(**{"live_at": timezone.now(), **changes})
    said = head(at_console, restarting)
    assert f"; now: {step}" in said
    assert "running in about" not in said
    assert "usually" not in said


def test_enough_slots_are_not_waited_for(at_console: Client, restarting: Run) -> None:
    Run.objects.update(live_at=timezone.now(), state="waiting", live={"waiting": {"wanted": 2, "there": 4}})
    assert "now: slots;" in head(at_console, restarting)
    assert "4 of 2" not in head(at_console, restarting)


def test_a_restart_after_a_delay_names_its_begin(at_console: Client, restarting: Run) -> None:
    next_at = (timezone.now() + timedelta(seconds=40)).timestamp() * 1000
    Attempt.objects.filter(token=2).update(detail={**FAILURE, "next_at": next_at})
    assert re.search(r"; now: the next attempt begins in \d\d s;", head(at_console, restarting))


def test_a_run_without_checkpoints_restarts_as_it_began(at_console: Client, restarting: Run) -> None:
    restarting.checkpoints.all().delete()
    assert "Restarts from the start; 1.9 M records to replay" in head(at_console, restarting)
    Run.objects.update(restore_path="/moved/savepoint-7")
    assert "Restarts from the snapshot that the run restored; 1.9 M" in head(at_console, restarting)


def test_a_first_start_is_no_restart(at_console: Client, restarting: Run) -> None:
    Attempt.objects.filter(token__lt=3).delete()
    assert "Restarts from" not in head(at_console, restarting)


def test_a_failed_run_shows_where_a_restore_continues(at_console: Client, restarting: Run) -> None:
    now = timezone.now()
    Run.objects.update(state="failed", ended_at=now, failure={"code": "attempt-failed", "message": "slot 1 was lost"})
    said = head(at_console, restarting)
    assert re.search(r"A restore continues from savepoint 8, 2\d s ago Oldest restore point checkpoint 6,", said)
    restarting.checkpoints.update(discarded_at=now)
    said = head(at_console, restarting)
    assert "A restore continues" not in said
    assert "Oldest restore point" not in said


@pytest.mark.parametrize("state", ["restarting", "failed", "finished"])
def test_the_page_takes_few_queries(at_console: Client, restarting: Run, state: str) -> None:
    """The first page of a failed job took 13 with 7 d."""
    ended_at = None if state == "restarting" else timezone.now()
    Run.objects.update(state=state, ended_at=ended_at, failure={"code": "unknown"})
    for span in ("7d", "6h", "15min"):
        caches["fragments"].clear()
        job_rows.forget_rows()
        with CaptureQueriesContext(connection) as queries:
            at_console.get(f"/jobs/{restarting.job_id}/?span={span}")
        assert len(queries) <= MAX_QUERIES, span
