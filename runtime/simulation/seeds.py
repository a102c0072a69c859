"""Simulates many independent seeds in several processes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from os import times
from typing import Final, Self

from runtime.simulation.faults import REQUEST_RATES
from runtime.simulation.simulation import SeedViolation, simulate

SEEDS_PER_BLOCK: Final = 20  #: seeds per task of the process pool


@dataclass(slots=True)
class Evidence:
    """The work of a number of simulated seeds."""

    seeds: int = 0
    simulated_ms: int = 0
    faults: int = 0
    cpu_s: float = 0.0

    def __str__(self) -> str:
        hours, faults = self.simulated_ms / 3_600_000, self.faults
        per_hour = 3_600 / self.cpu_s if self.cpu_s else 0.0
        return f"{hours * per_hour:,.0f} simulated hours and {faults * per_hour:,.0f} faults per hour of processor time"

    def __iadd__(self, other: "Evidence") -> Self:
        self.seeds += other.seeds
        self.simulated_ms += other.simulated_ms
        self.faults += other.faults
        self.cpu_s += other.cpu_s
        return self


Block = tuple[Evidence, int | None]  #: of the simulated seeds, and the seed with a violation


def first_violation(seeds: range, processes: int, lived: Callable[[Evidence], object]) -> SeedViolation | None:
    """The first violation. `lived` is called with the evidence of the seeds that were simulated since the last call."""
    for evidence, broken in _simulate_blocks(seeds, processes):
        lived(evidence)
        if broken is not None:
            return _violation_of(broken, Evidence())
    return None


def _simulate_blocks(seeds: range, processes: int) -> Iterator[Block]:
    blocks = [seeds[first : first + SEEDS_PER_BLOCK] for first in range(0, len(seeds), SEEDS_PER_BLOCK)]
    if processes == 1:
        yield from map(_simulate_block, blocks)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_simulate_block, block) for block in blocks]):
            if done.result()[1] is not None:
                pool.shutdown(cancel_futures=True)
            yield done.result()


def _simulate_block(seeds: range) -> Block:
    evidence, began = Evidence(), times()
    broken = next((seed for seed in seeds if _violation_of(seed, evidence) is not None), None)
    evidence.cpu_s = times().user - began.user
    return evidence, broken


def _violation_of(seed: int, evidence: Evidence) -> SeedViolation | None:
    evidence.seeds += 1
    try:
        world = simulate(seed).world
    except SeedViolation as broken:
        return broken
    evidence.simulated_ms += world.now
    evidence.faults += sum(count for kind, count in world.faults.occurrences.items() if kind not in REQUEST_RATES)
    return None
