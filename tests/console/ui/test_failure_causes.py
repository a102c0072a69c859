"""Failures of attempts by cause: numbers in messages do not separate them, operators and messages do."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.jobs.failures import failure_causes
from console.jobs.models import Attempt, Run
from tests.console.ui import blocks, rows

TRACEBACK = 'File "features.py", line 88, in basket\nZeroDivisionError: division by zero'


def fail(run: Run, minutes_ago: int, message: str, **detail: object) -> Attempt:
    """A failed attempt; times go with tokens."""
    ended = timezone.now() - timedelta(minutes=minutes_ago)
    recorded = {"code": "attempt-failed", "message": message, "operator": "", **detail}
    return Attempt.objects.create(
        run=run, token=10_000 - minutes_ago, started_at=ended - timedelta(minutes=1), ended_at=ended, outcome="failed",
        reason=message, detail=recorded if detail else None,
    )  # fmt: skip


@pytest.mark.django_db
def test_the_same_error_at_other_records_is_one_cause_with_the_newest_traceback() -> None:
    run = rows.run(rows.job(), "failed", token=9_999, failure={"message": "disk full", "operator": "parquet"})
    other = rows.run(rows.job("other"), "running")
    first = fail(run, 50, "division by zero at offset 7", operator="window", slot=0, traceback="old")
    fail(run, 40, "division by zero at offset 12", operator="join", slot=1, traceback="elsewhere")
    newest = fail(run, 30, "division by zero at offset 99", operator="window", slot=3, traceback=TRACEBACK)
    fail(other, 20, "not of this job", operator="window")
    last = fail(run, 1, "disk full")
    disk, window, join = failure_causes(run.job, rows.SCHEMA)
    assert (window.newest.operator, join.newest.operator) == ("sessions", "join airlines")
    assert (window.number, window.first, window.last) == (2, first.ended_at, newest.ended_at)
    assert (window.newest.message, window.newest.slot, window.newest.traceback) == (
        "division by zero at offset 99",
        3,
        TRACEBACK,
    )
    assert (join.number, join.newest.traceback) == (1, "elsewhere")
    assert (disk.attempt, disk.newest.operator) == (last.token, "parquet"), (
        "the run's row has the failure of its last attempt"
    )
    assert [cause.newest.operator for cause in failure_causes(run.job, rows.SCHEMA, "parquet")] == ["parquet"]
    assert [cause.number for cause in failure_causes(run.job, rows.SCHEMA, "window")] == [2]


@pytest.mark.django_db
def test_secrets_of_the_version_are_not_shown() -> None:
    secret = {"type": "object", "properties": {"password": {"type": "string", "writeOnly": True}}}
    run = rows.run(rows.job(version={"params": {"password": "a-river-runs"}}))
    fail(run, 5, "no access", operator="window", traceback="connect(password='a-river-runs')")
    (cause,) = failure_causes(run.job, secret)
    assert "a-river-runs" not in cause.newest.traceback
    assert "connect(" in cause.newest.traceback


@pytest.mark.django_db
def test_a_failed_run_gives_only_its_last_attempt_code_and_operator() -> None:
    """The same message with another code, or of an operator that another row records, is another cause."""
    run = rows.run(rows.job(), "failed", token=9_999, failure={"code": "final", "message": "full", "operator": "sink"})
    fail(run, 9, "full at 7")
    fail(run, 5, "full at 8", operator="sink")
    fail(run, 1, "full at 9")
    last, before, first = failure_causes(run.job, rows.SCHEMA)
    assert [(c.newest.code, c.newest.operator) for c in (last, before)] == [
        ("final", "sink"),
        ("attempt-failed", "sink"),
    ]
    assert (first.newest.code, first.newest.operator, first.newest.message) == ("unknown", "", "full at 7")


@pytest.mark.django_db
def test_a_job_that_is_rejected_at_its_start_has_its_reason_among_the_causes() -> None:
    """The master ends such a run without an end of its attempt."""
    failure = {"code": "missing-table", "message": "Table 7 is missing.", "detail": {}}
    run = rows.run(rows.job(), "failed", token=9_999, failure=failure)
    Attempt.objects.create(run=run, token=9_999, outcome="running")
    (cause,) = failure_causes(run.job, rows.SCHEMA)
    assert (cause.newest.code, cause.newest.message, cause.last) == (
        "missing-table",
        "Table 7 is missing.",
        run.ended_at,
    )


@pytest.mark.django_db
def test_the_failure_of_a_run_and_the_log_of_its_last_attempt_are_one_cause() -> None:
    """A supervisor that fails a run takes a new token, and stores the log with the attempt."""
    failure = {"code": "stage-died", "message": "The stage died.", "operator": "parquet", "detail": "line 1"}
    run = rows.run(rows.job(), "failed", token=10_001, failure=failure)
    fail(run, 5, "The stage died.", log=["line 1"])
    Attempt.objects.update(detail={"log": ["line 1"]})
    (cause,) = failure_causes(run.job, rows.SCHEMA)
    assert (cause.newest.code, cause.newest.operator, cause.newest.traceback) == ("stage-died", "parquet", "line 1")


@pytest.mark.django_db
def test_a_cause_names_its_subtask_and_leads_to_the_attempt_on_the_page_of_the_run(at_console: Client) -> None:
    run = rows.run(rows.job())
    failed = fail(run, 30, "division by zero", operator="window", slot=3, traceback=TRACEBACK)
    fail(run, 20, "slot 1 was lost", slot=1, traceback=TRACEBACK)
    page = at_console.get(f"/jobs/{run.job_id}/")
    assert "sessions · subtask 3 · slot 3" in blocks.text(page)
    assert "subtask 1" not in blocks.text(page), "no operator is known"
    link = f"/runs/{run.pk}/#attempt-{failed.token}"
    assert f'href="{link}"' in page.content.decode()
    assert f'<tr id="attempt-{failed.token}">' in at_console.get(f"/runs/{run.pk}/").content.decode()


@pytest.mark.django_db
def test_a_page_that_lacks_causes_says_so(at_console: Client) -> None:
    run = rows.run(rows.job())
    said = "These are the 8 newest causes."
    for minutes in range(1, 10):
        assert said not in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
        fail(run, minutes, f"cause {'abcdefghi'[minutes - 1]}")
    page = at_console.get(f"/jobs/{run.job_id}/")
    assert said in blocks.text(page)
    assert page.content.count(b'<details class="cause"') == len(failure_causes(run.job, rows.SCHEMA)) == 8


@pytest.mark.django_db
def test_the_last_warnings_of_the_job_master_stand_beside_the_causes(
    at_console: Client, settings: Settings, tmp_path: Path
) -> None:
    settings.WEIR_LOGS = tmp_path
    run = rows.run(rows.job())
    absent = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["warnings"]
    assert "This host does not have the log." in absent
    assert "#log-head" not in absent
    lines = [
        f'{{"timestamp": "2026-11-26T12:00:{n:02}Z", "event": "event {n}", "level": "{level}"}}'
        for n, level in enumerate(["warning", "info", *["error"] * 10])
    ]
    (tmp_path / f"run-{run.pk}.log").write_text("\n".join([*lines, "Traceback (most recent call last):", ""]))
    warnings = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["warnings"]
    assert re.findall(r"event \d+", warnings) == [f"event {n}" for n in range(2, 12)]
    assert "Traceback" not in warnings
    assert f'href="/runs/{run.pk}/?level=warning#log-head"' in warnings
