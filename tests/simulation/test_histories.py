"""Sources with a history and a live part under faults: the switch, positions, event time."""

from dataclasses import replace
from random import Random

import pytest

from runtime.core.job.graph import Partitioning
from runtime.core.subtask.source_parts import Histories
from runtime.simulation.jobs import Job
from runtime.simulation.model import Split
from runtime.simulation.random_jobs import AFTER_HISTORY_MS
from runtime.simulation.simulation import SeedViolation, SimulationPlan, simulate

SEEDS = range(3)


def split(name: str, first_ms: int, count: int, step_ms: int) -> Split:
    return Split(name, tuple((key, first_ms + step_ms * n) for n, key in enumerate(("abcde" * 9)[:count])))


def job(bounded: bool, uses_list_state: bool) -> Job:
    """A history of uneven splits, then a live part, a window."""
    made = Job()
    history = [split("h0", 0, 5, 1), split("h1", 0, 40, 3), split("h2", 30, 20, 2)]
    live = [split(f"l{n}", AFTER_HISTORY_MS + 3 * n, 30, 2) for n in range(3)]
    source = made.add_source(0, bounded, [*history, *live], lists_splits=uses_list_state)
    made.steps[0] = replace(made.steps[0], history=len(history))
    window = made.add("window", 1, [(source, Partitioning.HASH)])
    made.add("sink", 1, [(window, Partitioning.FORWARD)])
    return made


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("uses_list_state", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_and_a_live_part_are_read_once_and_in_time(seed: int, bounded: bool, uses_list_state: bool) -> None:
    """S0-08: random faults, stops and rescales. No row is late, although the live part is 2 s later."""
    made = job(bounded, uses_list_state)
    simulate(Random(f"{seed} {bounded} {uses_list_state}").randrange(10_000), SimulationPlan(job=made))


def test_a_live_part_that_opens_with_the_first_report_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Histories, "complete", lambda histories, subtask: subtask.operator)
    with pytest.raises(SeedViolation, match="before this subtask had read its history"):
        simulate(0, SimulationPlan(job=job(False, False), parallelism={0: 3, 1: 2}, faults={}))
