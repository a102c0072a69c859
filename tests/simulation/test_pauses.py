"""What event time promises behind a source that was idle, where a window hears of it by several ways."""

import pytest

from runtime.core.job.graph import Partitioning
from runtime.simulation.jobs import Job
from runtime.simulation.model import Split
from runtime.simulation.random_jobs import with_steady_splits
from runtime.simulation.simulation import SeedViolation, SimulationPlan, simulate

SEEDS = range(25, 41)  #: in the first, one way is slower than the other


def job() -> Job:
    """A source, a step of two subtasks that both hear of its pause, a window."""
    made = Job()
    before = tuple((key, time) for time, key in enumerate("abcde" * 2))
    behind = tuple((key, 1_000_000 + 2 * time) for time, key in enumerate("abcde" * 6))
    source = made.add_source(0, True, [Split("s", before + behind, len(before), 1_500)])
    union = made.add("union", 1, [(source, Partitioning.REBALANCE)])
    window = made.add("window", 2, [(union, Partitioning.HASH)])
    made.add("sink", 2, [(window, Partitioning.FORWARD)])
    return made


def simulate_all(made: Job) -> None:
    for seed in SEEDS:
        simulate(seed, SimulationPlan(job=made, parallelism={0: 1, 1: 2, 2: 2}, faults={}))


def test_records_behind_a_pause_may_be_late_where_one_way_wakes_before_the_other() -> None:
    """As in Flink: a channel that is set aside holds nobody back, also when its wake-up is already on its way."""
    with pytest.raises(SeedViolation, match="a late record"):
        simulate_all(job())


def test_they_are_not_while_the_source_says_no_more_of_time() -> None:
    simulate_all(with_steady_splits(job()))
