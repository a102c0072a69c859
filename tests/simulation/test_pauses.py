"""Event time behind a source that was idle, where its rows reach a window by several ways."""

from runtime.core.job.graph import Partitioning
from runtime.simulation.jobs import Job
from runtime.simulation.model import Split
from runtime.simulation.simulation import SimulationPlan, simulate

SEEDS = range(25, 33)  #: in the first, one way is slower than the other
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


def simulate_all(made: Job, sources: int) -> None:
    for seed in SEEDS:
        simulate(seed, SimulationPlan(job=made, parallelism={0: sources, 1: 2, 2: 2}, faults={}))


def test_records_after_a_pause_are_not_late_where_one_way_wakes_before_the_other() -> None:
    """In Flink they may be: an idle channel does not count, also when its wake-up is already on its way."""
    simulate_all(job([Split("s", BEFORE + later(0, 2), len(BEFORE), 1_500)]), 1)


def test_records_of_a_subtask_that_discovers_them_later_are_not_late() -> None:
    """The splits of a burst: each subtask looks for them by itself."""
    burst = [Split(f"s{n}", BEFORE + later(5 * n, 3), len(BEFORE), 1_500) for n in range(4)]
    simulate_all(job([*burst, *(Split(f"new{n}", later(7 * n, 2), 0, 1_500) for n in range(3))]), 3)
