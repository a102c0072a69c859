"""The shortest world in which the same law breaks: faults, requests, rows and steps are left out while it still does.

Each try is a whole world of its own, as fixed as the first; one that breaks the same law with a shorter journal takes
its place. It is greedy and has a budget: the result is the shortest found, not the shortest there is.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from runtime.errors import JobRejected
from runtime.simulation.cuts import Cuts, removable
from runtime.simulation.simulation import BrokenSeed, simulate

SCHEDULES: Final = 12  #: interleavings that are tried of the same world
FEW_SCHEDULES: Final = 4  #: and of each smaller one


@dataclass(slots=True)
class Budget:
    """`may_go_on` is asked before each try."""

    tries: int
    may_go_on: Callable[[], bool] = lambda: True
    progress: Callable[[BrokenSeed], None] = lambda best: None

    def take(self) -> bool:
        self.tries -= 1
        return self.tries >= 0 and self.may_go_on()


def shrink(broken: BrokenSeed, budget: Budget) -> BrokenSeed:
    """The shortest found."""
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
    """Begins anew after each success, since what may be left out has changed."""
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
    """A fault or a row less is better too, as long as the journal does not grow; another interleaving alone is not."""
    if found is None:
        return None
    same_size = replace(found.simulation.cuts, schedule=0) == replace(best.simulation.cuts, schedule=0)
    return None if same_size and found.lines == best.lines else found


def _try(broken: BrokenSeed, cuts: Cuts, lines: int) -> BrokenSeed | None:
    """The world with these cuts, if the same law breaks in it within so many lines."""
    try:
        simulate(broken.simulation.seed, replace(broken.simulation.plan, cuts=cuts), lines)
    except BrokenSeed as found:
        same = (found.law, found.error) == (broken.law, broken.error)
        return found if same and found.lines <= lines else None
    except JobRejected:  # what is left is no job
        return None
    return None


# ---------------------------------------------------------------- what may be left out


def _fewer_faults(broken: BrokenSeed) -> Iterator[Cuts]:
    """Large parts first, then each alone; the last ones first, since what follows them is shortest."""
    cuts = broken.simulation.cuts
    struck = broken.simulation.world.faults.struck
    if cuts.only is not None and len(struck) < len(cuts.only):
        yield replace(cuts, only=frozenset(struck))  # what never happened need not be named
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
    """What is smaller is another world, in which the bug may need another interleaving."""
    for cuts in _smaller_job(broken):
        yield from _rescheduled(cuts, FEW_SCHEDULES)
    for fault in reversed(broken.simulation.world.faults.struck):
        yield from _rescheduled(replace(broken.simulation.cuts, only=_without(broken, fault)), FEW_SCHEDULES)


def _without(broken: BrokenSeed, fault: str) -> frozenset[str]:
    return frozenset(broken.simulation.world.faults.struck) - {fault}


def _rescheduled(cuts: Cuts, count: int) -> Iterator[Cuts]:
    return (replace(cuts, schedule=schedule) for schedule in range(1, count + 2) if schedule != cuts.schedule)
