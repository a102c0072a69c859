"""Shrinks a world with a violation: leaves out faults, requests, rows and steps while the same invariant fails.

Each try simulates a whole deterministic world. A world that violates the same invariant with a shorter journal becomes
the new best. The search is greedy and has a budget, so the result is a local minimum.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from runtime.errors import JobRejected
from runtime.simulation.cuts import Cuts, removable
from runtime.simulation.simulation import BrokenSeed, simulate

SCHEDULES: Final = 12  #: number of interleavings to try of the same world
FEW_SCHEDULES: Final = 4  #: number of interleavings to try of each smaller world


@dataclass(slots=True)
class Budget:
    """The limits of a search; `may_go_on` is called before each try."""

    tries: int
    may_go_on: Callable[[], bool] = lambda: True
    progress: Callable[[BrokenSeed], None] = lambda best: None

    def take(self) -> bool:
        self.tries -= 1
        return self.tries >= 0 and self.may_go_on()


def shrink(broken: BrokenSeed, budget: Budget) -> BrokenSeed:
    """The smallest world found with the same violation."""
    happened = frozenset(broken.simulation.world.faults.struck)
    best = _try(broken, replace(broken.simulation.cuts, only=happened), broken.lines) or broken
    before = None
    while before is not best:
        before = best
        for cut in (_fewer_faults, _smaller_job, _other_schedules, _smaller_and_other):
            best = _improved(best, cut, budget)
    return best


Candidates = Callable[[BrokenSeed], Iterator[Cuts]]


def _improved(best: BrokenSeed, candidates: Candidates, budget: Budget) -> BrokenSeed:
    """The best world after trying `candidates`. Restarts after each success, because the possible cuts have changed."""
    found: BrokenSeed | None = best
    while found is not None:
        best, found = found, None
        for cuts in candidates(best):
            if not budget.take():
                return best
            found = _better(best, _try(best, cuts, best.lines))
            budget.progress(found or best)
            if found is not None:
                break
    return best


def _better(best: BrokenSeed, found: BrokenSeed | None) -> BrokenSeed | None:
    """`found` if it is better: a shorter journal, or fewer faults or rows with the same journal length; else None."""
    if found is None:
        return None
    same_size = replace(found.simulation.cuts, schedule=0) == replace(best.simulation.cuts, schedule=0)
    return None if same_size and found.lines == best.lines else found


def _try(broken: BrokenSeed, cuts: Cuts, lines: int) -> BrokenSeed | None:
    """The world with these cuts, if it has the same violation within `lines` lines of journal; else None."""
    try:
        simulate(broken.simulation.seed, replace(broken.simulation.plan, cuts=cuts), lines)
    except BrokenSeed as found:
        same = (found.law, found.error) == (broken.law, broken.error)
        return found if same and found.lines <= lines else None
    except JobRejected:  # the rest is not a valid job
        return None
    return None


# ---------------------------------------------------------------- candidates


def _fewer_faults(broken: BrokenSeed) -> Iterator[Cuts]:
    """Leaves out large parts of the faults first, then single faults; late faults first, which affect the least."""
    cuts = broken.simulation.cuts
    struck = broken.simulation.world.faults.struck
    if cuts.only is not None and len(struck) < len(cuts.only):
        yield replace(cuts, only=frozenset(struck))  # faults that never happened
    size = len(struck)
    while size:
        for end in range(len(struck), 0, -size):
            yield replace(cuts, only=frozenset(struck) - frozenset(struck[max(0, end - size) : end]))
        size //= 2


def _smaller_job(broken: BrokenSeed) -> Iterator[Cuts]:
    simulation = broken.simulation
    cuts = simulation.cuts
    for uid in removable(simulation.job):
        yield replace(cuts, skip=cuts.skip | {uid})
    longest = max((len(split.rows) for source in simulation.job.sources for split in source.splits), default=0)
    for rows in sorted({longest // 4, longest // 2, longest - 1} - {longest, -1}):
        yield replace(cuts, rows=rows)
    for parallelism in range(1, min(cuts.parallelism or 3, 3)):
        yield replace(cuts, parallelism=parallelism)


def _other_schedules(broken: BrokenSeed) -> Iterator[Cuts]:
    yield from _rescheduled(broken.simulation.cuts, SCHEDULES)


def _smaller_and_other(broken: BrokenSeed) -> Iterator[Cuts]:
    """Smaller worlds with other interleavings: the bug may need a different interleaving there."""
    for cuts in _smaller_job(broken):
        yield from _rescheduled(cuts, FEW_SCHEDULES)
    for fault in reversed(broken.simulation.world.faults.struck):
        yield from _rescheduled(replace(broken.simulation.cuts, only=_without(broken, fault)), FEW_SCHEDULES)


def _without(broken: BrokenSeed, fault: str) -> frozenset[str]:
    return frozenset(broken.simulation.world.faults.struck) - {fault}


def _rescheduled(cuts: Cuts, count: int) -> Iterator[Cuts]:
    return (replace(cuts, schedule=schedule) for schedule in range(1, count + 2) if schedule != cuts.schedule)
