"""Sources whose rows are out of order: windows, barriers that wait for pane ends, failures and rescales."""

from collections import Counter
from random import Random

import pytest

from runtime.core.job.messages import Barrier
from runtime.core.job.restart_strategy import NoRestart
from runtime.core.subtask.barrier_delay import BarrierDelay
from runtime.core.subtask.effects import AdvanceWatermark, SubtaskEffect
from runtime.core.subtask.subtask import Subtask
from runtime.operators.group_watermarks import GroupWatermarks
from runtime.simulation.jobs import Job, count_late_rows
from runtime.simulation.master import RunEnding
from runtime.simulation.model import LATE
from runtime.simulation.random_jobs import DISORDERS_MS, with_disordered_source
from runtime.simulation.simulation import SeedViolation, Simulation, SimulationPlan, simulate
from tests.simulation.test_scenarios import PERIODIC, plan, windowing

SEEDS = range(8)


def disordered(seed: int, stragglers: bool = True) -> Job:
    job = windowing(seed % 2 == 0, 40, 40, 30, 40)
    return with_disordered_source(job, job.sources[0].uid, Random(f"{seed} order"), stragglers)


def simulated(seed: int) -> Simulation:
    """With random faults, stops, drains and rescales. The output is compared with the oracle's."""
    return simulate(seed, SimulationPlan(job=disordered(seed), settings=PERIODIC, pace_ms=10))


def rescaled(seed: int) -> Simulation:
    """A crash of a slot ends a run, and the next run has another parallelism."""
    faults = {"crash_slot": 0.01}
    return simulate(seed, plan(disordered(seed), faults=faults, restart=NoRestart(), restores_again=False))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Barrier]:
    """The barriers that sources hold."""
    found: list[Barrier] = []
    hold = BarrierDelay.hold

    def counted(delay: BarrierDelay, barrier: Barrier, now: float) -> bool:
        is_held = hold(delay, barrier, now)
        found.extend([barrier] * is_held)
        return is_held

    monkeypatch.setattr(BarrierDelay, "hold", counted)
    return found


def test_output_is_exact_with_disorder_failures_and_rescales(held: list[Barrier]) -> None:
    """No row within the disorder is late, no window fires twice, and late rows are emitted once."""
    late: Counter[str] = Counter()
    endings: Counter[RunEnding] = Counter()
    attempts = 0
    for seed in SEEDS:
        world = simulated(seed)
        late.update(key for _, key, _ in world.world.target.output() if key.startswith(LATE))
        endings.update(world.endings)
        attempts += world.world.records.token
    assert held
    assert late
    assert endings[RunEnding.FINISHED] == len(SEEDS)
    assert sum(endings.values()) > len(SEEDS), "a run was stopped or canceled, so that another parallelism followed"
    assert attempts > sum(endings.values()), "an attempt failed"


def test_rows_are_out_of_order_within_the_disorder_except_stragglers() -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        for split in disordered(seed).sources[0].splits:
            assert split.disorder_ms in DISORDERS_MS
            for position, (key, time) in enumerate(split.rows):
                if time <= split.watermark_before(position):
                    found["too late"] += 1
                    assert key.isupper()
                found["behind"] += position > 0 and time < split.rows[position - 1][1]
    assert min(found["too late"], found["behind"]) > 20


def test_a_window_that_fires_twice_is_seen_beside_late_rows() -> None:
    once = Counter({("sink", "a@0", 3): 1, ("sink", f"{LATE}a@0", 1): 2, ("sink", f"{LATE}b@0", 1): 1})
    assert count_late_rows(once) == Counter({("sink", "a@0", 5): 1, ("sink", "b@0", 1): 1})
    twice = once + Counter({("sink", "a@0", 1): 1})
    assert count_late_rows(twice) == Counter({("sink", "a@0", 5): 1, ("sink", "a@0", 1): 1, ("sink", "b@0", 1): 1})


def test_a_window_that_opens_again_after_a_restore_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is too late opens a window that has fired.

    Without the restored watermark before the first row, and without the watermarks of key groups: one is enough.
    """
    start = Subtask._on_start

    def forgetful(machine: Subtask) -> list[SubtaskEffect]:
        return [effect for effect in start(machine) if not isinstance(effect, AdvanceWatermark)]

    for seed in range(3):
        rescaled(seed)
    monkeypatch.setattr(Subtask, "_on_start", forgetful)
    monkeypatch.setattr(GroupWatermarks, "store", lambda watermarks, time: None)
    with pytest.raises(SeedViolation, match="nothing-committed-twice"):
        list(map(rescaled, range(20)))
