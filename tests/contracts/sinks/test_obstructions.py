"""Targets that are full, read-only or locked for a while, or deleted, under a running job in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contracts.sinks.disks import small_disk
from tests.contracts.sinks.processes import running
from tests.contracts.sinks.runs import await_checkpoints, check, failing_job, finish, log_of, release, spec_of
from tests.contracts.sinks.targets import TARGETS, NewTarget, Target
from tests.waiting import until

pytestmark = pytest.mark.slow
OBSTRUCTIONS = [(kind, name) for kind in TARGETS for name in kind.obstructions]
REFUSALS = [(kind, name) for kind in TARGETS for name in kind.refusals]
DELETIONS = [kind for kind in TARGETS if kind.on_deletion]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.mark.parametrize(("kind", "obstruction"), OBSTRUCTIONS, ids=lambda each: getattr(each, "__name__", each))
def test_an_obstructed_target_gets_every_row_once_when_it_is_free_again(
    new_target: NewTarget, disk: Path, kind: type[Target], obstruction: str
) -> None:
    """S1-04: the failure is named while the obstruction lasts; the job then goes on by itself."""
    target = new_target(kind, disk)
    spec = replace(spec_of(target), waits=True, attempts=1_000)
    with running(spec) as job:
        await_checkpoints(target, job, 2)
        with target.obstructed(obstruction):
            until(lambda: re.search(target.obstructions[obstruction], log_of(target)), or_else=lambda: log_of(target))
        release(target)
        assert job.wait() == 0, log_of(target)
    check(target)


@pytest.mark.parametrize(("kind", "refusal"), REFUSALS, ids=lambda each: getattr(each, "__name__", each))
def test_a_refusal_ends_the_job_by_name_and_the_job_goes_on_when_it_is_mended(
    new_target: NewTarget, tmp_path: Path, kind: type[Target], refusal: str
) -> None:
    """S1-04: a person must act; neither restarts nor time mend the cause."""
    target = new_target(kind, tmp_path)
    with failing_job(target, target.refusals[refusal], attempts=1_000) as stack:
        stack.enter_context(target.obstructed(refusal))
    finish(target, parallelism=3)


@pytest.mark.parametrize("kind", DELETIONS, ids=lambda kind: kind.__name__)
def test_a_target_that_is_deleted_under_a_running_job_ends_it_by_name(
    new_target: NewTarget, tmp_path: Path, kind: type[Target]
) -> None:
    """S1-04: a sink neither goes on into an empty target nor waits for ever."""
    target = new_target(kind, tmp_path)
    with failing_job(target, target.on_deletion):
        target.delete()
