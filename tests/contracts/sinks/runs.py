"""Runs of the suite's job into a target, and the check of the rows that a reader then sees."""

from __future__ import annotations

from tests.contracts.sinks.job_process import TOTAL, JobSpec
from tests.contracts.sinks.processes import run
from tests.contracts.sinks.targets import Target
from tests.waiting import until


def log_of(target: Target) -> str:
    return (target.place.job / "log").read_text(errors="replace")[-4_000:]


def check(target: Target) -> None:
    """Every row is there, once; nothing is left behind. A server may show a commit a moment after it was answered."""
    target.settle()
    until(lambda: len(target.ids()) >= TOTAL, or_else=lambda: f"{len(target.ids())} rows; {log_of(target)}")
    found = sorted(target.ids())
    assert sorted(set(found)) == list(range(TOTAL)), f"{TOTAL - len(set(found))} rows are lost; {log_of(target)}"
    if not target.repeats:
        assert len(found) == TOTAL, f"{len(found) - TOTAL} rows are repeated; {log_of(target)}"
    until(lambda: target.leftovers() == [], or_else=lambda: f"{target.leftovers()} stays")


def spec_of(target: Target, window: str = "", fraction: float = 0.5, parallelism: int = 2) -> JobSpec:
    return JobSpec(target.sink(), target.place.job, window, fraction, parallelism)


def finish(target: Target, parallelism: int) -> None:
    assert run(spec_of(target, parallelism=parallelism)) == 0, log_of(target)
    check(target)
