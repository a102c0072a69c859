"""The recovery horizon of a run: how many records a failure now would replay."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from console.health.facts import RunFacts
from console.health.recovery import recovery_horizon
from console.jobs.models import Run
from console.metrics.live import Live, OperatorLive
from console.metrics.reads import Read
from tests.console.health.facts_of import NOW, ago, checkpoint, facts, failed_attempt


def facts_of_burst(total: int, **changes: Any) -> RunFacts:
    """The newest numbers end 15 s ago: a burst of 3 records in an interval that begins with the newest checkpoint."""
    base = facts(live=Live(operators={"orders": OperatorLive(records_out=total)}), **changes)
    newest = checkpoint(completed_at=ago(19), duration_ms=1_000.0)
    reads = (Read(ago(25), ago(20), 5), Read(ago(20), ago(15), 3))
    return replace(base, checkpoints=replace(base.checkpoints, newest=newest), reads=reads, sampled_at=ago(15))


def records(of: RunFacts) -> int | None:
    horizon = recovery_horizon(Run(state="running"), of, ())
    assert horizon is not None
    assert horizon.point == NOW - timedelta(seconds=20)
    return horizon.records


@pytest.mark.parametrize(("total", "replayed"), [(8, 3), (10, 5), (1_000, 15)])
def test_records_after_a_burst_are_at_most_those_of_the_attempt(total: int, replayed: int) -> None:
    """The mean of both intervals is 0.8 records per second, 12 in the 15 s after them."""
    assert records(facts_of_burst(total)) == replayed


def test_records_of_an_earlier_attempt_are_not_limited_by_those_of_the_present() -> None:
    assert records(facts_of_burst(2, attempts=(failed_attempt(18),))) == 15
