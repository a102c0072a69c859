"""Kinds of faults: each finds a bug of production that the same world without it does not show."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import pytest

from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.checkpoint.effects import CoordinatorEffect
from runtime.core.checkpoint.events import CoordinatorEvent, IdUnavailable
from runtime.core.job.ids import Token
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, manifest_folder
from runtime.errors import EnvironmentFailure
from runtime.io import manifests
from runtime.io.control import endpoints
from runtime.master import retention
from runtime.ports import SnapshotStore
from runtime.simulation import driver, simulation
from runtime.simulation.simulation import SeedViolation, SimulationPlan, simulate
from tests.simulation.test_pauses import burst_plan
from tests.simulation.test_planted import (
    delete_a_file_that_a_retained_manifest_names,
    leave_idle_channels_out_of_the_minimum,
)
from tests.simulation.test_planted_in_state import (
    disable_proofs,
    forget_the_rows_of_a_failed_write,
    mark_rows_as_captured_when_the_write_ends,
)
from tests.simulation.test_scenarios import PERIODIC, counting, plan

Plant = Callable[[pytest.MonkeyPatch], None]
CRASHES: Final = {"crash_slot": 0.005, "crash_master": 0.002}


def admit_slots_of_older_attempts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(endpoints, "refusal_reason", lambda *_: None)


def take_a_manifest_that_exists_for_written(patch: pytest.MonkeyPatch) -> None:
    """A look follows a failed write: if there is a file, the answer alone was lost."""
    write = manifests.write_manifest

    def written(store: SnapshotStore, manifest: Manifest) -> tuple[str, int]:
        try:
            return write(store, manifest)
        except EnvironmentFailure:
            folder = manifest_folder(manifest)
            if f"{folder}/{MANIFEST_FILE}" not in store.list(folder):
                raise
            return folder, 0

    patch.setattr(driver, "write_manifest", written)


def trust_a_listing_about_manifests(patch: pytest.MonkeyPatch) -> None:
    """A retained checkpoint whose manifest is not listed counts as deleted."""
    sweep = retention.sweep_orphans

    def swept(store: SnapshotStore, token: Token, retained: Iterable[Manifest], unreadable: Collection[str]) -> int:
        listed = set(store.list(""))
        there = [each for each in retained if f"{manifest_folder(each)}/{MANIFEST_FILE}" in listed]
        return sweep(store, token, there, unreadable)

    patch.setattr(retention, "sweep_orphans", swept)


def wait_for_ever_for_an_id(patch: pytest.MonkeyPatch) -> None:
    """The coordinator never asks for an id again after an answer that was lost."""
    handle = Coordinator.handle

    def waiting(machine: Coordinator, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        return [] if isinstance(event, IdUnavailable) else handle(machine, event)

    patch.setattr(Coordinator, "handle", waiting)


def without_proofs(plant: Plant) -> Plant:
    """The output alone shows the bug."""

    def planted(patch: pytest.MonkeyPatch) -> None:
        disable_proofs(patch)
        plant(patch)

    return planted


def counting_plan() -> SimulationPlan:
    return plan(counting(bounded=False), PERIODIC, parallelism={0: 2, 1: 2})


def plan_that_keeps_all() -> SimulationPlan:
    return plan(counting(bounded=False), PERIODIC, parallelism={0: 2, 1: 2}, retained_checkpoints=1_000)


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of fault at a rate, and the seed in which it finds the planted bug."""

    kind: str
    rate: float
    plant: Plant
    seed: int
    make_plan: Callable[[], SimulationPlan] = counting_plan
    crashes: bool = True

    def plan(self, rate: float) -> SimulationPlan:
        made = self.make_plan()
        made.faults = {self.kind: rate, **(CRASHES if self.crashes else {})}
        return made


CASES = [
    Case("foreign_slot", 0.5, admit_slots_of_older_attempts, 0),
    Case("torn_write", 0.05, take_a_manifest_that_exists_for_written, 6),
    Case("stale_listing", 1.0, trust_a_listing_about_manifests, 1),
    Case("lose_metadata_reply", 0.1, wait_for_ever_for_an_id, 1, crashes=False),
    Case("lose_store_reply", 0.1, without_proofs(forget_the_rows_of_a_failed_write), 3),
    Case("slow_storage", 0.02, without_proofs(mark_rows_as_captured_when_the_write_ends), 3),
    Case("partition", 0.02, leave_idle_channels_out_of_the_minimum, 1, burst_plan, crashes=False),
    Case("change_retention", 0.02, delete_a_file_that_a_retained_manifest_names, 0, plan_that_keeps_all, crashes=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_a_bug_is_found_through_a_fault(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Production stands the fault, and its absence hides the bug."""
    stood = simulate(case.seed, case.plan(case.rate))
    assert stood.world.faults.occurrences[case.kind] > 0
    monkeypatch.setattr(simulation, "STEP_LIMIT", 8_000)  # a wait for ever ends there
    case.plant(monkeypatch)
    simulate(case.seed, case.plan(0.0))
    with pytest.raises(SeedViolation) as violation:
        simulate(case.seed, case.plan(case.rate))
    assert violation.value.simulation.world.faults.occurrences[case.kind] > 0


@pytest.mark.parametrize("seed", range(2))
def test_savepoints_are_discarded_and_writes_arrive_twice_without_harm(seed: int) -> None:
    made = plan_that_keeps_all()
    made.faults = {"stop": 0.01, "savepoint": 0.01, "discard_savepoint": 0.05, "repeat_write": 0.5, "fail_delete": 0.2}
    ended = simulate(seed, made)
    assert ended.world.records.discarded
    assert ended.world.faults.occurrences["repeat_write"] > 10
