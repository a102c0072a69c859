"""Simulates many independent seeds in several processes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Final

from runtime.simulation.simulation import BrokenSeed, simulate

BLOCK: Final = 20  #: seeds per task of the process pool
Block = tuple[int, int | None]  #: number of simulated seeds, and the seed with a violation


def first_broken(seeds: range, processes: int, lived: Callable[[int], object]) -> BrokenSeed | None:
    """The first violation found. `lived` is called with the number of seeds that were simulated since its last call."""
    for count, broken in _lived(seeds, processes):
        lived(count)
        if broken is not None:
            return _broken(broken)
    return None


def _lived(seeds: range, processes: int) -> Iterator[Block]:
    blocks = [seeds[first : first + BLOCK] for first in range(0, len(seeds), BLOCK)]
    if processes == 1:
        yield from map(_live, blocks)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_live, block) for block in blocks]):
            if done.result()[1] is not None:
                pool.shutdown(cancel_futures=True)
            yield done.result()


def _live(seeds: range) -> Block:
    for count, seed in enumerate(seeds, 1):
        if _broken(seed) is not None:
            return count, seed
    return len(seeds), None


def _broken(seed: int) -> BrokenSeed | None:
    try:
        simulate(seed)
    except BrokenSeed as broken:
        return broken
    return None
