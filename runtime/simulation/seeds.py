"""Simulates many independent seeds in several processes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Final

from runtime.simulation.simulation import SeedViolation, simulate

SEEDS_PER_BLOCK: Final = 20  #: seeds per task of the process pool
Block = tuple[int, int | None]  #: number of simulated seeds, and the seed with a violation


def first_violation(seeds: range, processes: int, lived: Callable[[int], object]) -> SeedViolation | None:
    """The first violation found. `lived` is called with the number of seeds that were simulated since the last call."""
    for count, broken in _simulate_blocks(seeds, processes):
        lived(count)
        if broken is not None:
            return _violation_of(broken)
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
    for count, seed in enumerate(seeds, 1):
        if _violation_of(seed) is not None:
            return count, seed
    return len(seeds), None


def _violation_of(seed: int) -> SeedViolation | None:
    try:
        simulate(seed)
    except SeedViolation as broken:
        return broken
    return None
