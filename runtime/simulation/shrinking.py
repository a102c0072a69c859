"""Shrinks a world with a violation: leaves out faults, requests, rows and steps while the same invariant fails.

Each try simulates a whole deterministic world. A world that violates the same invariant with a shorter journal becomes
the new best. The search is greedy and has a budget, so the result is a local minimum.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from runtime.errors import JobRejected
from runtime.simulation.cuts import Cuts, removable
from runtime.simulation.simulation import SeedViolation, simulate

SCHEDULE_TRIES: Final = 12  #: number of interleavings to try of the same world
SMALLER_WORLD_SCHEDULE_TRIES: Final = 4  #: number of interleavings to try of each smaller world


@dataclass(slots=True)
class Budget:
    """The limits of a search; `may_go_on` is called before each try."""

    tries: int
    may_go_on: Callable[[], bool] = lambda: True
    progress: Callable[[SeedViolation], None] = lambda best: None

    def take(self) -> bool:
        self.tries -= 1
        return self.tries >= 0 and self.may_go_on()


def shrink(broken: SeedViolation, budget: Budget) -> SeedViolation:
    """The smallest world found with the same violation."""
    happened = frozenset(broken.simulation.world.faults.occurred_labels)
    best = _try(broken, replace(broken.simulation.cuts, only=happened), broken.journal_lines) or broken
    before = None
    while before is not best:
        before = best
        for cut in (_fewer_faults, _smaller_job, _other_schedules, _smaller_and_other):
            best = _improve(best, cut, budget)
    return best


Candidates = Callable[[SeedViolation], Iterator[Cuts]]


def _improve(best: SeedViolation, candidates: Candidates, budget: Budget) -> SeedViolation:
    """The best world after trying `candidates`. Restarts after each success, because the possible cuts have changed."""
    found: SeedViolation | None = best
    while found is not None:
        best, found = found, None
        for cuts in candidates(best):
            if not budget.take():
                return best
            found = _better(best, _try(best, cuts, best.journal_lines))
            budget.progress(found or best)
            if found is not None:
                break
    return best


def _better(best: SeedViolation, found: SeedViolation | None) -> SeedViolation | None:
    """`found` if it is better: a shorter journal, or fewer faults or rows with the same journal length; else None."""
    if found is None:
        return None
    same_size = replace(found.simulation.cuts, schedule=0) == replace(best.simulation.cuts, schedule=0)
    return None if same_size and found.journal_lines == best.journal_lines else found


def _try(broken: SeedViolation, cuts: Cuts, lines: int) -> SeedViolation | None:
    """The world with `cuts`, if it has the same violation within `lines` lines of journal; else None."""
    try:
        simulate(broken.simulation.seed, replace(broken.simulation.plan, cuts=cuts), lines)
    except SeedViolation as found:
        same = (found.invariant, found.error) == (broken.invariant, broken.error)
        return found if same and found.journal_lines <= lines else None
    except JobRejected:  # the job without the cut parts is invalid
        return None
    return None


# ---------------------------------------------------------------- candidates


def _fewer_faults(broken: SeedViolation) -> Iterator[Cuts]:
    """Leaves out large parts of the faults first, then single faults; late faults first, which affect the least."""
    cuts = broken.simulation.cuts
    struck = broken.simulation.world.faults.occurred_labels
    if cuts.only is not None and len(struck) < len(cuts.only):
        yield replace(cuts, only=frozenset(struck))  # leaves out faults that never happened
    size = len(struck)
    while size:
        for end in range(len(struck), 0, -size):
            yield replace(cuts, only=frozenset(struck) - frozenset(struck[max(0, end - size) : end]))
        size //= 2


def _smaller_job(broken: SeedViolation) -> Iterator[Cuts]:
    simulation = broken.simulation
    cuts = simulation.cuts
    for uid in removable(simulation.job):
        yield replace(cuts, skip=cuts.skip | {uid})
    longest = max((len(split.rows) for source in simulation.job.sources for split in source.splits), default=0)
    for rows in sorted({longest // 4, longest // 2, longest - 1} - {longest, -1}):
        yield replace(cuts, rows=rows)
    for parallelism in range(1, min(cuts.parallelism or 3, 3)):
        yield replace(cuts, parallelism=parallelism)


def _other_schedules(broken: SeedViolation) -> Iterator[Cuts]:
    yield from _with_schedules(broken.simulation.cuts, SCHEDULE_TRIES)


def _smaller_and_other(broken: SeedViolation) -> Iterator[Cuts]:
    """Smaller worlds with other interleavings: the bug may need another interleaving in a smaller world."""
    for cuts in _smaller_job(broken):
        yield from _with_schedules(cuts, SMALLER_WORLD_SCHEDULE_TRIES)
    for fault in reversed(broken.simulation.world.faults.occurred_labels):
        yield from _with_schedules(
            replace(broken.simulation.cuts, only=_without(broken, fault)), SMALLER_WORLD_SCHEDULE_TRIES
        )


def _without(broken: SeedViolation, fault: str) -> frozenset[str]:
    return frozenset(broken.simulation.world.faults.occurred_labels) - {fault}


def _with_schedules(cuts: Cuts, count: int) -> Iterator[Cuts]:
    return (replace(cuts, schedule=schedule) for schedule in range(1, count + 2) if schedule != cuts.schedule)
