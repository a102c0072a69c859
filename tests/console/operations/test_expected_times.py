"""The expected time of an operation has a single source, so all pages give the same time with the same origin."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.operations.expected_times import expected_duration
from tests.console.ui import blocks, rows

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


def test_restarts_and_the_newest_checkpoint_stand_for_operations_that_the_job_never_had() -> None:
    run = rows.run(rows.job())
    assert expected_duration(run.job_id, "restore") is None
    rows.attempts(run)
    newest = [row for row in rows.history(run) if row.status == "completed"][-1]
    restore, stop = expected_duration(run.job_id, "restore"), expected_duration(run.job_id, "stop", newest)
    assert restore is not None
    assert (restore.median_ms, restore.note) == (8_000.0, "as the last restart of this job")
    assert stop is not None
    assert (stop.median_ms, stop.count) == (newest.duration_ms, 0)
    assert stop.note == f"as {newest}: the job has no earlier stop"
    assert expected_duration(run.job_id, "copy", newest) is None


def test_the_start_of_a_run_is_known_to_the_pages_of_the_fixtures() -> None:
    run = rows.run(rows.job())
    rows.operations_of(run, rows.operator_user())
    found = expected_duration(run.job_id, "restore")
    assert found is not None
    assert (found.median_ms, found.note) == (1_200.0, "as the last start of this job")
