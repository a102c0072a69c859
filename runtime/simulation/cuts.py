"""Cuts: the parts of a world that are left out to shrink it: faults, requests, rows, steps and parallelism.

`shrinking` chooses the cuts. A world with cuts is as deterministic as a world without.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from runtime.core.job.graph import EdgeSpec
from runtime.core.job.ids import OperatorId
from runtime.simulation.jobs import Job, Step
from runtime.simulation.model import Split

FORWARDING_KINDS: Final = (
    "map",
    "batching",
    "holding",
    "asking",
    "pooling",
)  #: kinds of steps that forward every row, sooner or later


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """The cuts of a world; the default cuts nothing."""

    only: frozenset[str] | None = None  #: labels of the faults and requests that happen; None: all
    rows: int | None = None  #: maximum number of rows per split
    skip: frozenset[str] = frozenset()  #: uids of the steps that are left out
    parallelism: int | None = None  #: maximum parallelism of any operator
    schedule: int = 0  #: number of the interleaving of the same world

    def options(self) -> str:
        options = [] if self.only is None else [f"--only {','.join(sorted(self.only)) or 'none'}"]
        options += [] if self.rows is None else [f"--rows {self.rows}"]
        options += [f"--skip {','.join(sorted(self.skip))}"] if self.skip else []
        options += [] if self.parallelism is None else [f"--parallelism {self.parallelism}"]
        options += [f"--schedule {self.schedule}"] if self.schedule else []
        return " ".join(options)

    def apply(self, job: Job) -> Job:
        for uid in sorted(self.skip):
            job = _without(job, OperatorId(uid))
        return job if self.rows is None else Job([_shorten_step(step, self.rows) for step in job.steps], job.edges)

    def limit_parallelism(self, parallelism: dict[int, int]) -> dict[int, int]:
        return {lane: min(n, self.parallelism or n) for lane, n in parallelism.items()}


def _shorten_step(step: Step, rows: int) -> Step:
    return replace(step, splits=tuple(_shorten_split(split, rows) for split in step.splits))


def _shorten_split(split: Split, rows: int) -> Split:
    """The first `rows` rows of the split. At least one row after a pause stays, because a pause must end with a row."""
    if split.pauses_at is None:
        return replace(split, rows=split.rows[:rows])
    before = min(split.pauses_at, rows)
    behind = split.rows[split.pauses_at : split.pauses_at + max(1, rows - before)]
    return replace(split, rows=split.rows[:before] + behind, pauses_at=before)


# ---------------------------------------------------------------- steps


def removable(job: Job) -> Iterator[str]:
    """Uids of steps that can be left out individually.

    Removable are forwarding steps, and steps whose input has other readers, with all steps downstream of them.
    """
    for step in job.steps:
        read = [edge for edge in job.edges if edge.target == step.uid]
        siblings = [edge for edge in job.edges for own in read if edge.source == own.source]
        if len(read) == 1 and (step.kind in FORWARDING_KINDS or len(siblings) > 1):
            yield step.uid


def _without(job: Job, uid: OperatorId) -> Job:
    if job.step(uid).kind in FORWARDING_KINDS:
        return _bypass(job, uid)
    gone = {uid}
    for edge in job.edges:  # in topological order
        gone |= {edge.target} if edge.source in gone else set()
    return _remove_steps(job, gone, job.edges)


def _bypass(job: Job, uid: OperatorId) -> Job:
    (read,) = (edge for edge in job.edges if edge.target == uid)
    edges = [replace(edge, source=read.source) if edge.source == uid else edge for edge in job.edges]
    return _remove_steps(job, {uid}, edges)


def _remove_steps(job: Job, gone: set[OperatorId], edges: list[EdgeSpec]) -> Job:
    steps = [step for step in job.steps if step.uid not in gone]
    return Job(steps, [edge for edge in edges if edge.target not in gone and edge.source not in gone])
