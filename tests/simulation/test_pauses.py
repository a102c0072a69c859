"""Event time behind a source that was idle, where its rows reach a window by several ways."""

from random import Random

import pytest

from runtime.core.job.graph import Partitioning
from runtime.core.subtask.watermark_valve import WatermarkValve
from runtime.simulation import simulation
from runtime.simulation.jobs import Job
from runtime.simulation.model import Split
from runtime.simulation.random_jobs import with_pairs
from runtime.simulation.simulation import SeedViolation, SimulationPlan, simulate
from tests.simulation.test_planted import leave_idle_channels_out_of_the_minimum

SEEDS = (11, 13, 25)  #: in the first two, one way is slower than the other
DRAINED_SEEDS = (5, 7, 11)
NEVER = property(lambda valve: False, lambda valve, drains: None)
BEFORE = tuple((key, time) for time, key in enumerate("abcde" * 2))
LONG = tuple((key, time) for time, key in enumerate("abcde" * 8))


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
    monkeypatch.setattr(simulation, "OVERTAKING", 0.0)
    leave_idle_channels_out_of_the_minimum(monkeypatch)
    with pytest.raises(SeedViolation, match="a late record"):
        simulate(11, one_way_plan())


def drained_plan() -> SimulationPlan:
    """A subtask of source `left` has no split and is idle. Source `other` ends before the drain."""
    made = Job()
    left = made.add_source(0, False, [Split("left", LONG), Split("empty", ())])
    right = made.add_source(1, True, [Split("right", LONG)])
    other = made.add_source(2, True, [Split("other", tuple((key, 3 * time) for key, time in LONG))])
    windows = made.add("window_pairs", 3, [(left, Partitioning.HASH), (right, Partitioning.HASH)])
    pairs = made.add("pairs", 4, [(windows, Partitioning.HASH), (other, Partitioning.HASH)])
    made.add("sink", 4, [(pairs, Partitioning.FORWARD)])
    return SimulationPlan(job=made, parallelism={0: 3, 4: 2}, faults={})


@pytest.mark.parametrize("seed", DRAINED_SEEDS)
def test_the_last_windows_of_a_drain_are_not_late_where_a_subtask_was_idle(seed: int) -> None:
    """The other subtasks of its source end first."""
    simulate(seed, drained_plan())


def test_a_subtask_that_is_idle_while_the_job_drains_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatermarkValve, "job_drains", NEVER, raising=False)
    with pytest.raises(SeedViolation, match="a late record"):
        [simulate(seed, drained_plan()) for seed in DRAINED_SEEDS]


def kinds_of_the_first_union(pauses_at: int | None) -> set[str]:
    """In 40 random jobs, in which the rows of the first union meet another stream in event time."""
    kinds = set()
    for seed in range(40):
        made = Job()
        sources = [made.add_source(0, True, [Split("first", BEFORE + later(0, 2), pauses_at, 1_500)])]
        sources += [made.add_source(lane, True, [Split(f"{lane}", LONG)]) for lane in (1, 2)]
        first = made.add("union", 3, [(source, Partitioning.REBALANCE) for source in sources[:2]])
        second = made.add("union", 4, [(uid, Partitioning.REBALANCE) for uid in (first, sources[2])])
        made.add("sink", 5, [(made.add("window", 5, [(second, Partitioning.HASH)]), Partitioning.FORWARD)])
        kinds.add(with_pairs(made, Random(seed)).step(first).kind)
    return kinds


def test_no_random_job_has_a_window_join_whose_rows_may_be_late_after_a_pause() -> None:
    """Its windows are open during the pause, while the other stream advances event time."""
    assert kinds_of_the_first_union(None) == {"union", "pairs", "window_pairs"}
    assert kinds_of_the_first_union(len(BEFORE)) == {"union", "pairs"}
