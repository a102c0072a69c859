"""Event time behind a source that was idle, where its rows reach a window by several ways."""

import pytest

from runtime.core.job.graph import Partitioning
from runtime.simulation.jobs import Job
from runtime.simulation.model import Split
from runtime.simulation.simulation import SeedViolation, SimulationPlan, simulate
from tests.simulation.test_planted import leave_idle_channels_out_of_the_minimum

SEEDS = (5, 11, 25)  #: in the first two, one way is slower than the other
BEFORE = tuple((key, time) for time, key in enumerate("abcde" * 2))


def later(first: int, step: int) -> tuple[tuple[str, int], ...]:
    return tuple((key, 1_000_000 + first + step * number) for number, key in enumerate("abcde" * 6))


def job(splits: list[Split]) -> Job:
    """A source, a step of two subtasks that both receive its rows, a window."""
    made = Job()
    source = made.add_source(0, True, splits)
    union = made.add("union", 1, [(source, Partitioning.REBALANCE)])
    window = made.add("window", 2, [(union, Partitioning.HASH)])
    made.add("sink", 2, [(window, Partitioning.FORWARD)])
    return made


def one_way_plan() -> SimulationPlan:
    made = job([Split("s", BEFORE + later(0, 2), len(BEFORE), 1_500)])
    return SimulationPlan(job=made, parallelism={0: 1, 1: 2, 2: 2}, faults={})


@pytest.mark.parametrize("seed", SEEDS)
def test_records_after_a_pause_are_not_late_where_one_way_wakes_before_the_other(seed: int) -> None:
    """In Flink they may be: an idle channel does not count, also when its wake-up is already on its way."""
    simulate(seed, one_way_plan())


def burst_plan() -> SimulationPlan:
    """The splits of a burst: each subtask looks for them by itself."""
    burst = [Split(f"s{n}", BEFORE + later(5 * n, 3), len(BEFORE), 1_500) for n in range(4)]
    made = job([*burst, *(Split(f"new{n}", later(7 * n, 2), 0, 1_500) for n in range(3))])
    return SimulationPlan(job=made, parallelism={0: 3, 1: 2, 2: 2}, faults={})


@pytest.mark.parametrize("seed", SEEDS)
def test_records_of_a_subtask_that_discovers_them_later_are_not_late(seed: int) -> None:
    simulate(seed, burst_plan())


def test_event_time_without_idle_channels_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_idle_channels_out_of_the_minimum(monkeypatch)
    with pytest.raises(SeedViolation, match="a late record"):
        simulate(5, one_way_plan())
