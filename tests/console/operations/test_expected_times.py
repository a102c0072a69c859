"""The expected time of an operation has a single source, so all pages give the same time with the same origin."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.models import User
from console.operations.expected_times import expected_duration
from console.pages.start_phases import start_moments
from tests.console.ui import blocks, numbers, rows
from tests.console.ui.numbers import FINE

pytestmark = pytest.mark.django_db


def test_pages_expect_the_same_time_of_a_restore() -> None:
    run, now = rows.run(rows.job()), timezone.now()
    newest = rows.checkpoint(run, 7)
    rows.operation(run.job, "start", created_at=now, ended_at=now + timedelta(seconds=9))
    client = Client()
    client.force_login(rows.operator_user())
    for page in (f"restore/?checkpoint={newest.pk}", "rescale/", "cancel/"):
        said = blocks.text(client.get(f"/jobs/{run.job_id}/{page}"))
        assert re.search(r"\b9\.0 s ?[;·] as the last start of this job", said), page


def test_restarts_and_savepoints_stand_for_operations_that_the_job_never_had() -> None:
    """A restart restores state, as a restore does; a start does not. A stop takes a savepoint and ends the run."""
    run, now = rows.run(rows.job()), timezone.now()
    assert expected_duration(run.job_id, "restore") is None
    rows.operation(run.job, "start", created_at=now, ended_at=now + timedelta(seconds=1))
    rows.attempts(run)
    newest = [row for row in rows.history(run) if row.status == "completed"][-1]
    restore, stop = expected_duration(run.job_id, "restore"), expected_duration(run.job_id, "stop", newest)
    assert restore is not None
    assert (restore.median_ms, restore.note) == (
        8_000.0, "as the last restart of this job; a new Spark application takes longer",
    )  # fmt: skip
    assert str(restore) == "at least 8.0 s"
    assert stop is not None
    assert (stop.median_ms, stop.count, stop.is_least) == (newest.duration_ms, 0, True)
    assert stop.note == f"as {newest}: the job has no earlier stop"
    rows.operation(run.job, "savepoint", created_at=now, ended_at=now + timedelta(seconds=2))
    for kind in ("stop", "drain"):
        duration = expected_duration(run.job_id, kind, newest)
        assert duration is not None
        assert (str(duration), duration.note) == ("at least 2.0 s", "as the last savepoint of this job"), kind
    assert str(expected_duration(run.job_id, "savepoint", newest)) == "2.0 s"
    assert expected_duration(run.job_id, "copy", newest) is None


def test_savepoints_that_expired_are_named_beside_those_that_succeeded() -> None:
    run, now = rows.run(rows.job()), timezone.now()
    newest, minute = rows.checkpoint(run, 7), timedelta(minutes=1)
    error = {"code": "expired", "message": "no acknowledgement from join/0"}
    rows.operation(run.job, "savepoint", "failed", error=error, created_at=now, ended_at=now + minute)
    rows.operation(run.job, "savepoint", "failed", error={"code": "withdrawn"}, created_at=now, ended_at=now + minute)
    duration = expected_duration(run.job_id, "savepoint", newest)
    assert duration is not None
    assert duration.note == f"as {newest}: the job has no earlier savepoint; 1 expired after 1 min"
    for took_s in (1, 3):
        rows.operation(run.job, "savepoint", created_at=now, ended_at=now + timedelta(seconds=took_s))
    duration = expected_duration(run.job_id, "stop", newest)
    assert duration is not None
    assert duration.note == "the last 2 savepoints of this job took 1.0 s to 3.0 s; 1 of the last 3 expired after 1 min"
    assert str(duration) == "at least 1.0 s", "a savepoint is a part of a stop: the median of several is no minimum"


def test_the_start_of_a_run_takes_as_long_on_all_pages() -> None:
    """S1: the page of the run shows what a start waited for, so other pages expect the same."""
    run = rows.run(rows.job())
    rows.operations_of(run, rows.operator_user())
    rows.attempts(run)
    rows.history(run)
    numbers.record(run, hours=0.1, fine_minutes=1)
    start, restore = (expected_duration(run.job_id, kind) for kind in ("start", "restore"))
    assert start is not None
    assert restore is not None
    moments = start_moments(run)[0]
    assert moments.working
    assert start.median_ms == pytest.approx(
        (moments.working - moments.requested) / timedelta(milliseconds=1), abs=FINE * 1_000
    )
    client = Client()
    client.force_login(User.objects.get())
    horizon = client.get(f"/jobs/{run.job_id}/").context["view"].health.horizon
    assert (horizon.restart_ms, horizon.restarts) == (restore.median_ms, restore.count)
