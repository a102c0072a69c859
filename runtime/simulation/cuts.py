"""What is left out of a world to make it smaller: faults and requests, rows, steps, parallelism.

It decides nothing about what to leave out (`shrinking` does). A world with cuts is as fixed as one without.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from runtime.core.job.graph import EdgeSpec
from runtime.core.job.ids import OperatorId
from runtime.simulation.jobs import Job, Step
from runtime.simulation.model import Split

PASSING: Final = ("map", "batching", "holding", "pooling")  #: steps whose output is their input, sooner or later


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Everything is left in by default."""

    only: frozenset[str] | None = None  #: the faults and requests that happen, by name and number; None: all
    rows: int | None = None  #: at most so many in each split
    skip: frozenset[str] = frozenset()  #: steps that are not there
    parallelism: int | None = None  #: of any operator, at most
    schedule: int = 0  #: which of the interleavings of the same world

    def options(self) -> str:
        """As the command line takes them."""
        said = [] if self.only is None else [f"--only {','.join(sorted(self.only)) or 'none'}"]
        said += [] if self.rows is None else [f"--rows {self.rows}"]
        said += [f"--skip {','.join(sorted(self.skip))}"] if self.skip else []
        said += [] if self.parallelism is None else [f"--parallelism {self.parallelism}"]
        said += [f"--schedule {self.schedule}"] if self.schedule else []
        return " ".join(said)

    def apply(self, job: Job) -> Job:
        """The job with fewer rows and steps."""
        for uid in sorted(self.skip):
            job = _without(job, OperatorId(uid))
        return job if self.rows is None else Job([_shorter(step, self.rows) for step in job.steps], job.edges)

    def capped(self, parallelism: dict[int, int]) -> dict[int, int]:
        return {lane: min(n, self.parallelism or n) for lane, n in parallelism.items()}


def _shorter(step: Step, rows: int) -> Step:
    return replace(step, splits=tuple(_shortened(split, rows) for split in step.splits))


def _shortened(split: Split, rows: int) -> Split:
    """A pause keeps a row behind it, or there is none."""
    if split.pauses_at is None:
        return replace(split, rows=split.rows[:rows])
    before = min(split.pauses_at, rows)
    behind = split.rows[split.pauses_at : split.pauses_at + max(1, rows - before)]
    return replace(split, rows=split.rows[:before] + behind, pauses_at=before)


# ---------------------------------------------------------------- steps


def removable(job: Job) -> Iterator[str]:
    """Steps that can go, one at a time: those that pass rows on, and one of two readers with all that only feeds it."""
    for step in job.steps:
        read = [edge for edge in job.edges if edge.target == step.uid]
        siblings = [edge for edge in job.edges for own in read if edge.source == own.source]
        if len(read) == 1 and (step.kind in PASSING or len(siblings) > 1):
            yield step.uid


def _without(job: Job, uid: OperatorId) -> Job:
    if job.step(uid).kind in PASSING:
        return _bypassed(job, uid)
    gone = {uid}
    for edge in job.edges:  # in the order of the stream
        gone |= {edge.target} if edge.source in gone else set()
    return _only(job, gone, job.edges)


def _bypassed(job: Job, uid: OperatorId) -> Job:
    (read,) = (edge for edge in job.edges if edge.target == uid)
    edges = [replace(edge, source=read.source) if edge.source == uid else edge for edge in job.edges]
    return _only(job, {uid}, edges)


def _only(job: Job, gone: set[OperatorId], edges: list[EdgeSpec]) -> Job:
    steps = [step for step in job.steps if step.uid not in gone]
    return Job(steps, [edge for edge in edges if edge.target not in gone and edge.source not in gone])
