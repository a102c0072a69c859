"""Slots that run on from attempt to attempt, in jobs whose subtasks exchange nothing: exact, and planted bugs show."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

from runtime.core.attempt import machine
from runtime.core.attempt.failover_regions import FailoverRules, RestartScope
from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.snapshot.manifest import Manifest
from runtime.master import retention
from runtime.ports import SnapshotStore
from runtime.simulation import master, simulation
from runtime.simulation.cluster import SimulatedTask
from runtime.simulation.simulation import SimulationPlan, simulate
from runtime.simulation.slots import ReportStarted
from runtime.simulation.world import CheckpointRecords, SimulatedTarget
from tests.simulation.planted_bugs import Plant, find

#: Slots fail again and again.
FAULTS = {
    "crash_slot": 0.006,
    "fail_operator": 0.006,
    "slow_snapshot": 0.05,
    "lose_message": 0.002,
    "slow_message": 0.02,
}
ENDS = {"stop": 0.01, "drain": 0.004, "slow_message": 0.05}  #: and a stop or a drain may be under way


@pytest.fixture(autouse=True)
def jobs_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "APART", 1.0)


def test_jobs_are_exact_while_slots_continue_in_attempt_after_attempt() -> None:
    """S4-44."""
    worlds = [simulate(seed, failing(**ENDS) if seed % 2 else failing()).world for seed in range(10)]
    assert sum(world.kept_slots for world in worlds) > 20


def failing(**more: float) -> SimulationPlan:
    """A random world in which slots fail; `more`: further faults."""
    return SimulationPlan(faults=FAULTS | more, restart=FixedDelay(attempts=100, delay_ms=20))


# ---------------------------------------------------------------- planted bugs


def keep_the_receivers_of_a_failed_slot(patch: pytest.MonkeyPatch) -> None:
    """A branch with an exchange is divided."""

    def scope(graph: JobGraph, rules: FailoverRules, failed: Collection[int]) -> RestartScope:
        return RestartScope(graph, frozenset(failed))

    patch.setattr(machine, "restart_scope", scope)


def take_newest_token(patch: pytest.MonkeyPatch) -> Callable[[], Token]:
    tokens = [Token(0)]
    take = CheckpointRecords.take_token

    def taken(records: CheckpointRecords) -> Token:
        tokens.append(take(records))
        return tokens[-1]

    patch.setattr(CheckpointRecords, "take_token", taken)
    return lambda: tokens[-1]


def clean_the_output_of_kept_slots(patch: pytest.MonkeyPatch) -> None:
    newest, clean = take_newest_token(patch), SimulatedTarget.clean

    def cleaned(target: SimulatedTarget, uid: str, token: Token, keep: Sequence[str]) -> None:
        clean(target, uid, newest(), keep)

    patch.setattr(SimulatedTarget, "clean", cleaned)


def sweep_the_files_of_kept_slots(patch: pytest.MonkeyPatch) -> None:
    newest, sweep = take_newest_token(patch), retention.sweep_orphans

    def swept(store: SnapshotStore, token: Token, retained: Iterable[Manifest], unreadable: Any) -> int:
        return sweep(store, newest(), retained, unreadable)

    patch.setattr(retention, "sweep_orphans", swept)


def keep_slots_while_the_job_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "is_ending", False)


def restore_redistributed_lists_beside_their_holders(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(master, "restores_apart", lambda manifest, graph: True)


def hide_finished_subtasks_from_the_new_master(patch: pytest.MonkeyPatch) -> None:
    def report(task: SimulatedTask) -> None:
        if task.is_started:
            task.slot.send_report(task.subtask, ReportStarted())

    patch.setattr(SimulatedTask, "report_to_new_master", report)


#: By planted bug, the seed at which the search begins.
PLANTED: dict[Plant, int] = {
    keep_the_receivers_of_a_failed_slot: 315,
    clean_the_output_of_kept_slots: 12,
    sweep_the_files_of_kept_slots: 6,
    keep_slots_while_the_job_ends: 2,
    restore_redistributed_lists_beside_their_holders: 73,
    hide_finished_subtasks_from_the_new_master: 50,
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_simulator_finds_a_planted_bug(plant: Plant) -> None:
    """S4-44."""
    ends = ENDS if plant is keep_slots_while_the_job_ends else {}
    find(plant, lambda: failing(**ends), PLANTED[plant])
