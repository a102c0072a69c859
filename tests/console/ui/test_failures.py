"""Failures of attempts by cause: numbers in messages do not separate them, operators and messages do."""

from datetime import timedelta

import pytest
from django.utils import timezone

from console.jobs.models import Attempt, Run
from console.ui.failures import failure_causes
from tests.console.ui import rows

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
