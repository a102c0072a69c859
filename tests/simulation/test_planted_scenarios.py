"""Known bugs that random worlds find seldom or never: each is planted in a scenario made for it."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from runtime.core.job.settings import CoordinatorSettings
from runtime.core.subtask.poll_policy import PollPolicy
from runtime.simulation import simulation
from runtime.simulation.jobs import Job
from runtime.simulation.model import Split
from runtime.simulation.simulation import Incident, SeedViolation, SimulationPlan, simulate
from runtime.task import task as task_module
from tests.simulation.planted_bugs import Plant, circulating
from tests.simulation.test_planted import (
    forget_the_back_edge_log,
    keep_all_files_while_a_manifest_is_unreadable,
    keep_pre_aggregated_rows_at_a_barrier,
    send_the_barrier_before_pre_aggregated_rows,
)
from tests.simulation.test_scenarios import (
    CHECKPOINT,
    HASH,
    NONE,
    PERIODIC,
    counting,
    plan,
    recorded,
    rows,
    windowing,
)


def coalesce_in_reverse_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task_module, "concat_alike", lambda batches: [pa.concat_batches(list(batches)[::-1])])


def rest_until_there_are_many_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PollPolicy, "rests", lambda policy, now: policy.has_few_rows)


def rest_as_long_as_there_were_no_rows(patch: pytest.MonkeyPatch) -> None:
    """Without a limit."""
    patch.setattr(PollPolicy, "next_poll_ms", lambda policy, now: now - policy._last_rows_at)


def forget_the_timer_of_a_source_that_rests(patch: pytest.MonkeyPatch) -> None:
    next_poll_ms = PollPolicy.next_poll_ms
    patch.setattr(
        PollPolicy, "next_poll_ms", lambda policy, now: None if policy.rests(now) else next_poll_ms(policy, now)
    )


# ---------------------------------------------------------------- scenarios


def looping() -> SimulationPlan:
    """The master crashes behind each of the first checkpoints of a loop, while records go round."""
    crashes = [Incident(recorded(CHECKPOINT, count), lambda s: s.crash_master()) for count in (1, 2, 3)]
    settings = CoordinatorSettings(interval_ms=5, timeout_ms=4_000, min_pause_ms=0)
    return plan(circulating(), settings, *crashes, parallelism={0: 2}, faults={}, restores_again=False)


def reading_fast() -> SimulationPlan:
    job = Job()
    read = job.add_source(0, True, [Split("s.0", rows(60))])
    job.add("sink", 1, [(read, HASH)])
    made = plan(job, PERIODIC, parallelism={0: 1, 1: 2}, faults={})
    made.pace_ms = 0
    return made


def pre_aggregating() -> SimulationPlan:
    """Pre-aggregated rows before windows, and crashes."""
    faults = {"crash_slot": 0.005, "crash_master": 0.002}
    return plan(windowing(True, 60, 60), PERIODIC, parallelism={0: 2, 1: 2}, faults=faults)


def damaging() -> SimulationPlan:
    """Manifests of old checkpoints become unreadable."""
    faults = {"damage_manifest": 0.01, "savepoint": 0.01}
    return plan(counting(bounded=False), PERIODIC, parallelism={0: 2, 1: 2}, faults=faults, retained_checkpoints=2)


def pausing() -> SimulationPlan:
    """A source without rows for seconds."""
    job = Job()
    read = job.add_source(0, True, [Split("s.0", rows(9), pauses_at=6, resumes_ms=5_000)])
    job.add("sink", 1, [(read, HASH)])
    return plan(job, NONE, parallelism={0: 1, 1: 2}, faults={})


def counting_plan() -> SimulationPlan:
    return plan(counting(bounded=True), NONE, parallelism={0: 2, 1: 2}, faults={})


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario, the seed in which it finds the planted bug, and the violated invariant."""

    plant: Plant
    scenario: Callable[[], SimulationPlan]
    seed: int
    invariant: str

    def __str__(self) -> str:
        return self.plant.__name__


CASES = [
    Case(forget_the_back_edge_log, looping, 1, "nothing-lost"),
    Case(keep_pre_aggregated_rows_at_a_barrier, pre_aggregating, 0, "nothing"),
    Case(send_the_barrier_before_pre_aggregated_rows, pre_aggregating, 1, "nothing"),
    Case(keep_all_files_while_a_manifest_is_unreadable, damaging, 0, "deletion-goes-on"),
    Case(coalesce_in_reverse_order, reading_fast, 0, "rows-of-a-source-keep-their-order"),
    Case(rest_until_there_are_many_rows, counting_plan, 0, "liveness"),
    Case(rest_as_long_as_there_were_no_rows, pausing, 1, "no-source-rests-for-longer-than-a-slot"),
    Case(forget_the_timer_of_a_source_that_rests, counting_plan, 0, "no-wake-up-is-lost"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_scenario_finds_the_bug_that_it_is_made_for(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(case.seed, case.scenario())
    monkeypatch.setattr(simulation, "STEP_LIMIT", 4_000)  # a source that starves ends there
    case.plant(monkeypatch)
    with pytest.raises(SeedViolation, match=case.invariant):
        simulate(case.seed, case.scenario())
