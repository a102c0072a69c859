"""Every sink, ended by SIGKILL at each window of a checkpoint, and taken over by a process of another parallelism.

The windows: before prepare, after prepare, after the manifest, after the record, at three points of a commit, after the
commit and before its acknowledgement, at a restore, and a zombie that commits after another process has taken over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from pyspark import cloudpickle

from tests.contracts.sinks.job_process import TOTAL, JobSpec
from tests.contracts.sinks.kills import ROOT
from tests.contracts.sinks.run_files import checkpoints_in
from tests.contracts.sinks.targets import TARGETS, Place, Target
from tests.waiting import until

pytestmark = pytest.mark.slow
PATIENCE_S: Final = 90.0
WINDOWS: Final = {
    "before-prepare": ("before-prepare", 0.0),
    "after-prepare": ("after-prepare", 0.0),
    "after-manifest": ("after-manifest", 0.0),
    "after-record": ("after-record", 0.0),
    "commit-begun": ("commit", 0.25),
    "commit-half": ("commit", 0.5),
    "commit-late": ("commit", 0.75),
    "after-commit": ("after-commit", 0.0),
}


@pytest.fixture(params=TARGETS, ids=lambda kind: kind.__name__)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    kind: type[Target] = request.param
    servers = {name: str(request.getfixturevalue(name)) for name in kind.servers}
    made = kind(Place(tmp_path, f"t{os.getpid()}_{time.monotonic_ns()}", servers))
    made.create()
    return made


@contextmanager
def process(spec: JobSpec) -> Iterator[subprocess.Popen[bytes]]:
    path = spec.folder / f"spec-{time.monotonic_ns()}"
    path.write_bytes(cloudpickle.dumps(spec))  # type: ignore[no-untyped-call]
    log = (spec.folder / "log").open("ab")
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.contracts.sinks.job_process", str(path)], cwd=ROOT, stdout=log, stderr=log
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()
        log.close()


def run(spec: JobSpec) -> int:
    """Runs a process to its end. Returns its exit code, negative for a signal."""
    with process(spec) as started:
        return started.wait(PATIENCE_S)


def log_of(target: Target) -> str:
    return (target.place.folder / "log").read_text(errors="replace")[-4_000:]


def check(target: Target) -> None:
    """Every row is there, once; nothing is left behind. A server may show a commit a moment after it was answered."""
    until(lambda: len(target.ids()) >= TOTAL, or_else=lambda: f"{len(target.ids())} rows; {log_of(target)}")
    found = sorted(target.ids())
    assert sorted(set(found)) == list(range(TOTAL)), f"{TOTAL - len(set(found))} rows are lost; {log_of(target)}"
    if not target.repeats:
        assert len(found) == TOTAL, f"{len(found) - TOTAL} rows are repeated; {log_of(target)}"
    until(lambda: target.leftovers() == [], or_else=lambda: f"{target.leftovers()} stays")


def spec_of(target: Target, window: str = "", fraction: float = 0.5, parallelism: int = 2) -> JobSpec:
    return JobSpec(target.sink(), target.place.folder, window, fraction, parallelism)


def finish(target: Target, parallelism: int) -> None:
    assert run(spec_of(target, parallelism=parallelism)) == 0, log_of(target)
    check(target)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_process_killed_at_a_window_is_taken_over_exactly(target: Target, window: str) -> None:
    """S1-05, S1-06, S1-23, S1-48: SIGKILL, then another parallelism takes over, with commits pending."""
    name, fraction = WINDOWS[window]
    assert run(spec_of(target, name, fraction)) == -signal.SIGKILL, log_of(target)
    assert checkpoints_in(target.place.folder / "run") >= 2
    finish(target, parallelism=3)


def test_a_process_killed_while_it_restores_is_taken_over_exactly(target: Target) -> None:
    """S1-06: a restore commits what was pending, is killed while it does, and is repeated."""
    assert run(spec_of(target, "after-record")) == -signal.SIGKILL, log_of(target)
    assert run(spec_of(target, "restore", parallelism=1)) == -signal.SIGKILL, log_of(target)
    finish(target, parallelism=2)


def test_a_zombie_that_commits_after_a_takeover_changes_nothing(target: Target) -> None:
    """A process stopped at a commit wakes up after another has committed the same output and ended the job."""
    with process(spec_of(target, "zombie")) as zombie:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), log_of(target)
        finish(target, parallelism=3)
        zombie.send_signal(signal.SIGCONT)
        zombie.wait(PATIENCE_S)
    check(target)


def test_a_target_that_is_away_at_commits_loses_no_row(target: Target) -> None:
    """Commits are retried, and after that the job restarts; no output is dropped."""
    assert run(replace(spec_of(target, "away"), outages=6)) == 0, log_of(target)
    check(target)


def test_two_overlapping_checkpoints_commit_each_row_once(target: Target) -> None:
    """S1-46."""
    assert run(replace(spec_of(target), overlapping=2)) == 0, log_of(target)
    check(target)
