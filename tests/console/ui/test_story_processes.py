"""Runs of the pictures that exist at the same time, on the same hosts."""

import pytest
from django.utils import timezone

from tests.console.ui import numbers, rows


def test_runs_at_the_same_time_share_no_process(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now)
    rows.operator_user("ada")
    flowing = numbers.run_with_story("flights-delays", "running", 214)
    runs = [flowing, numbers.slow_run(), numbers.recovered_run()]
    slots = [slot for run in runs for slot in (run.live or {})["slots"]]
    for column in ("pid", "address", "log"):
        assert len({slot[column] for slot in slots}) == len(slots), column
    assert len({run.lease_owner for run in runs}) == len(runs)
    for run in runs:
        assert run.live
        assert run.started_at
        application = run.live["spark_application"]
        assert application.startswith(f"app-{run.started_at:%Y%m%d%H%M%S}-")
        lost = [attempt.detail["slot_log"] for attempt in run.attempts.filter(outcome="failed") if attempt.detail]
        assert all(application in log for log in (*lost, *(slot["log"] for slot in run.live["slots"])))
