"""Every sink, ended by SIGKILL at each window of a checkpoint, and taken over by a process of another parallelism.

The windows: before prepare, after prepare, after the manifest, after the record, at three points of a commit, after the
commit and before its acknowledgement, at a restore, and a zombie that commits after another process has taken over.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final

import pytest

from tests.contracts.sinks.holds import held
from tests.contracts.sinks.job_process import EARLY_SOURCE, SINK
from tests.contracts.sinks.processes import run, running
from tests.contracts.sinks.run_files import (
    checkpoints_in,
    failed_checkpoints_in,
    finished_operators_in,
    pending_checkpoints_in,
)
from tests.contracts.sinks.runs import await_checkpoints, check, finish, log_of, release, spec_of
from tests.contracts.sinks.targets import Target
from tests.waiting import until

pytestmark = pytest.mark.slow
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


@pytest.mark.parametrize("window", WINDOWS)
def test_a_process_killed_at_a_window_is_taken_over_exactly(target: Target, window: str) -> None:
    """S1-06, S1-51: SIGKILL, then another parallelism takes over, with commits pending."""
    name, fraction = WINDOWS[window]
    assert run(spec_of(target, name, fraction)) == -signal.SIGKILL, log_of(target)
    assert checkpoints_in(target.place.job / "run") >= 2
    finish(target, parallelism=3)


def test_a_process_killed_after_a_branch_has_ended_is_taken_over_exactly(target: Target) -> None:
    """S1-06, FLIP-147: a source has ended before the checkpoint, and is restored as finished."""
    spec = replace(spec_of(target, "after-record"), ends_early=True, waits=True)
    assert run(spec) == -signal.SIGKILL, log_of(target)
    ended = finished_operators_in(target.place.job / "run")
    assert EARLY_SOURCE in ended
    assert SINK not in ended
    release(target)
    assert run(replace(spec, window="", parallelism=3)) == 0, log_of(target)
    check(target)


def test_a_process_killed_while_it_restores_is_taken_over_exactly(target: Target) -> None:
    """S1-06: a restore commits what was pending, is killed while it does, and is repeated."""
    assert run(spec_of(target, "after-record")) == -signal.SIGKILL, log_of(target)
    assert run(spec_of(target, "restore", parallelism=1)) == -signal.SIGKILL, log_of(target)
    finish(target, parallelism=2)


def test_a_zombie_that_commits_after_a_takeover_changes_nothing(target: Target) -> None:
    """A process stopped at a commit wakes up after another has committed the same output and ended the job."""
    with running(spec_of(target, "zombie")) as zombie:
        zombie.wait_until_stopped(lambda: log_of(target))
        finish(target, parallelism=3)
        zombie.resume()
        zombie.wait()
    check(target)


def test_a_target_that_is_away_at_commits_loses_no_row(target: Target) -> None:
    """Commits are retried, and after that the job restarts; no output is dropped."""
    assert run(replace(spec_of(target, "away"), outages=6)) == 0, log_of(target)
    assert "the target is away" in log_of(target)
    check(target)


def test_two_overlapping_checkpoints_commit_each_row_once(target: Target) -> None:
    """S1-46: a checkpoint is triggered while the sink has not prepared the preceding one."""
    run_file = target.place.job / "run"
    with running(replace(spec_of(target), overlapping=2, waits=True)) as job:
        await_checkpoints(target, job, 2)
        with held(target.place.job, "before-prepare", lambda: log_of(target)):
            until(lambda: pending_checkpoints_in(run_file) == 2, or_else=lambda: log_of(target))
            assert failed_checkpoints_in(run_file) == []
        release(target)
        assert job.wait() == 0, log_of(target)
    check(target)
