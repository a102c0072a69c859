"""Runs of the suite's job into a target, and the check of the rows that a reader then sees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tests.contracts.sinks.job_process import TOTAL, JobSpec
from tests.contracts.sinks.kills import RELEASE_FILE
from tests.contracts.sinks.processes import JobProcess, run, running
from tests.contracts.sinks.run_files import failed_checkpoints_in, newest_checkpoint_in
from tests.contracts.sinks.targets import Target
from tests.waiting import until


def log_of(target: Target) -> str:
    return (target.place.job / "log").read_text(errors="replace")[-40_000:]


def check(target: Target) -> None:
    """Every row is there, once; nothing is left behind. A server may show a commit a moment after it was answered."""
    target.settle()
    until(lambda: len(target.ids()) >= TOTAL, or_else=lambda: f"{len(target.ids())} rows; {log_of(target)}")
    ids = sorted(target.ids())
    assert sorted(set(ids)) == list(range(TOTAL)), f"{TOTAL - len(set(ids))} rows are lost; {log_of(target)}"
    if not target.repeats:
        assert len(ids) == TOTAL, f"{len(ids) - TOTAL} rows are repeated; {log_of(target)}"
    until(lambda: target.leftovers() == [], or_else=lambda: f"{target.leftovers()} stays")


def release(target: Target) -> None:
    """The source of the running job goes on at full speed."""
    (target.place.job / RELEASE_FILE).touch()


def await_checkpoints(target: Target, job: JobProcess, count: int) -> None:
    """Waits until the running job has recorded `count` more checkpoints."""
    checkpoints = {_newest(target)}

    def are_seen() -> bool:
        assert job.is_alive, log_of(target)
        checkpoints.add(_newest(target))
        return len(checkpoints) > count

    until(are_seen, or_else=lambda: log_of(target))


def await_failed_checkpoint(target: Target) -> None:
    """Waits until a further checkpoint of the running job has failed."""
    run_file = target.place.job / "run"
    before = len(failed_checkpoints_in(run_file))
    until(lambda: len(failed_checkpoints_in(run_file)) > before, or_else=lambda: log_of(target))


def _newest(target: Target) -> int:
    return newest_checkpoint_in(target.place.job / "run")


def spec_of(target: Target, window: str = "", fraction: float = 0.5, parallelism: int = 2) -> JobSpec:
    return JobSpec(target.sink(), target.place.job, window, fraction, parallelism)


@contextmanager
def failing_job(target: Target, pattern: str, attempts: int = 5) -> Iterator[ExitStack]:
    """A job, with recorded checkpoints, that the block makes fail by an error that matches `pattern`.

    Contexts that enter the stack end after the job.
    """
    with running(replace(spec_of(target), waits=True, attempts=attempts)) as job, ExitStack() as stack:
        await_checkpoints(target, job, 2)
        yield stack
        assert job.wait() > 0, log_of(target)
    assert re.search(pattern, log_of(target)), log_of(target)


def finish(target: Target, parallelism: int) -> None:
    """Runs the job at full speed from its newest checkpoint to its end."""
    release(target)
    assert run(spec_of(target, parallelism=parallelism)) == 0, log_of(target)
    check(target)
