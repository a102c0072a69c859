"""The search for planted bugs, and worlds in which a bug shows within few seeds.

A random world has each fault seldom. In a world of this module the fault in question is frequent and the job small, so
that no first seed is special and a search takes seconds. Seeds vary interleavings and faults.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.simulation import simulation
from runtime.simulation.jobs import Job
from runtime.simulation.model import Split
from runtime.simulation.random_jobs import AFTER_PAUSE_MS, with_disordered_source
from runtime.simulation.simulation import Incident, SeedViolation, SimulationPlan, simulate
from tests.simulation.test_scenarios import (
    FORWARD,
    HASH,
    NONE,
    REBALANCE,
    ask,
    counting,
    plan,
    recorded,
    running,
    splits,
    windowing,
)

Plant = Callable[[pytest.MonkeyPatch], None]
World = Callable[[], SimulationPlan]

SEEDS_MAX: Final = 25  #: of a search
STEPS_MAX: Final = 14_000  #: worlds with some bugs never end
OFTEN: Final = CoordinatorSettings(interval_ms=10, timeout_ms=1_000, min_pause_ms=0)
RESUMES_MS: Final = 1_500


def find(
    plant: Plant, world: World = SimulationPlan, first_seed: int = 0, share_overtaking: float = 0.0
) -> SeedViolation:
    """The first violation. Fails if there is none, or if the same world without the bug has a violation, too.

    `share_overtaking`: of the worlds without settings of their own, those in which barriers may overtake rows.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "STEP_LIMIT", STEPS_MAX)
        patch.setattr(simulation, "OVERTAKING", share_overtaking)
        with pytest.MonkeyPatch.context() as planted:
            plant(planted)
            violation = first_violation(range(first_seed, first_seed + SEEDS_MAX), world)
        assert violation is not None, f"not found in {SEEDS_MAX} seeds"
        simulate(violation.simulation.seed, world())
    return violation


def first_violation(seeds: range, world: World = SimulationPlan) -> SeedViolation | None:
    for seed in seeds:
        try:
            simulate(seed, world())
        except SeedViolation as violation:
            return violation
    return None


# ---------------------------------------------------------------- jobs


def counted() -> Job:
    return counting(bounded=True)


def batching() -> Job:
    """A step keeps rows until a barrier."""
    return counting(bounded=True, middle="batching")


def circulating(middle: str = "map") -> Job:
    """A loop with a step `middle` in its body."""
    job = Job()
    head = job.add("loop", 0, [(job.add_source(0, True, splits("s", 30, 30)), REBALANCE)])
    body = job.add("hop", 0, [(head, HASH)], mark="~")
    if middle != "map":
        body = job.add(middle, 0, [(body, FORWARD)])
    job.close(job.add("again", 0, [(body, FORWARD)], mark="~"), head, REBALANCE)
    passed = job.add("out", 0, [(body, FORWARD)], mark="~")
    job.add("sink", 0, [(job.add("count", 0, [(passed, HASH)]), FORWARD)])
    return job


def listing() -> Job:
    """The splits of the source are list state."""
    job = Job()
    read = job.add_source(0, True, splits("s", 20, 12, 16, 8), lists_splits=True)
    job.add("sink", 1, [(job.add("count", 1, [(read, HASH)]), FORWARD)])
    return job


def pooling() -> Job:
    """A step holds rows in a union list."""
    job = Job()
    read = job.add_source(0, True, splits("s", 30, 2, 40))
    pooled = job.add("pooling", 1, [(read, REBALANCE)])
    job.add("sink", 2, [(job.add("count", 2, [(pooled, HASH)]), FORWARD)])
    return job


def uneven() -> Job:
    """Of the subtasks that hold rows in a union list, some finish much earlier than others."""
    job = Job()
    pooled = job.add("pooling", 0, [(job.add_source(0, True, splits("s", 2, 60, 3, 50)), FORWARD)])
    job.add("sink", 1, [(job.add("count", 1, [(pooled, HASH)]), FORWARD)])
    return job


def asking() -> Job:
    """A step before a window holds rows until requests are answered."""
    job = Job()
    asking = job.add("asking", 0, [(job.add_source(0, True, splits("s", 30, 20)), FORWARD)])
    job.add("sink", 1, [(job.add("window", 1, [(asking, HASH)]), FORWARD)])
    return job


def disordered() -> Job:
    job = windowing(True, 40, 40)
    return with_disordered_source(job, job.sources[0].uid, Random("order"), stragglers=False)


# ---------------------------------------------------------------- worlds


def crashing(job: Callable[[], Job] = counted, **faults: float) -> World:
    """Slots and masters crash. `faults`: rates of further kinds."""
    rates = {"crash_slot": 0.004, "crash_master": 0.004, **faults}
    return lambda: plan(job(), faults=rates, restores_again=False)


def rescaling(job: Callable[[], Job] = counted) -> World:
    """Each failure ends a run, and the next run has another parallelism."""
    faults = {"crash_slot": 0.01, "stop": 0.005}
    return lambda: plan(job(), OFTEN, restart=NoRestart(), faults=faults, restores_again=False)


def overtaking(job: Callable[[], Job] = counted) -> World:
    """As `rescaling`; barriers overtake rows almost at once."""

    def world() -> SimulationPlan:
        chosen = rescaling(job)()
        chosen.settings = replace(OFTEN, alignment_timeout_ms=1)
        return chosen

    return world


def superseding() -> SimulationPlan:
    """Masters and their slots continue after a newer master has started."""
    faults = {"zombie_master": 0.005, "slow_manifest": 0.3, "slow_snapshot": 0.1}
    return plan(counting(bounded=True), faults=faults, restores_again=False)


def saving() -> SimulationPlan:
    """Two sinks. Savepoints, whose output no failed attempt commits."""
    job = Job()
    read = job.add_source(0, True, splits("s", 40, 40))
    for lane in (1, 2):
        job.add("sink", lane, [(job.add("count", lane, [(read, HASH)]), FORWARD)])
    faults = {"crash_slot": 0.01, "savepoint": 0.03}
    return plan(job, faults=faults, parallelism={0: 1, 1: 1, 2: 1}, restores_again=False)


def following() -> SimulationPlan:
    """Idle subtasks of a source follow the others, while session windows are open."""
    later = tuple((key, AFTER_PAUSE_MS + 3 * number) for number, key in enumerate("abcde" * 2))
    short = tuple((key, number) for number, key in enumerate("abcde" * 2))
    long = tuple((key, 3 * number) for number, key in enumerate("abcde" * 3))
    job = Job()
    read = job.add_source(
        0, True, [Split(f"s{n}", rows + later, len(rows), RESUMES_MS) for n, rows in enumerate((long, short) * 2)]
    )
    sessions = job.add("session", 1, [(read, HASH)])
    job.add("sink", 2, [(job.add("count", 2, [(sessions, HASH)]), FORWARD)])
    return plan(job, NONE, faults={}, parallelism={0: 3, 1: 2, 2: 2}, restores_again=False)


def stopping() -> SimulationPlan:
    """The master crashes once the manifest of a stop is recorded."""
    request = Incident(running, ask(CheckpointKind.STOP))
    crash = Incident(recorded(CheckpointKind.STOP), lambda s: s.crash_master())
    return plan(counting(bounded=False), NONE, request, crash, faults={}, restores_again=False)


def pausing_master() -> SimulationPlan:
    """The process of the master is stopped for a while, and continues."""
    return plan(counting(bounded=False), faults={"stop_master": 0.01}, restores_again=False)


def flooding() -> SimulationPlan:
    """A source is faster than its receivers."""
    job = Job()
    read = job.add_source(0, True, splits("s", 200, 200))
    job.add("sink", 1, [(job.add("count", 1, [(read, HASH)]), REBALANCE)])
    fast = plan(job, faults={"crash_slot": 0.002}, restores_again=False)
    fast.pace_ms = 0
    return fast


def looping() -> SimulationPlan:
    """Slots and masters crash while records go round a loop."""
    settings = CoordinatorSettings(interval_ms=5, timeout_ms=4_000, min_pause_ms=0)
    faults = {"crash_slot": 0.004, "crash_master": 0.002}
    return plan(circulating(), settings, faults=faults, parallelism={0: 2}, restores_again=False)
