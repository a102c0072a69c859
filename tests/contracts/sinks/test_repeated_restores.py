"""Every sink, if the same checkpoint is restored by several runs, one after the other."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace

import pytest

from tests.contracts.sinks.processes import run
from tests.contracts.sinks.run_files import restore_point
from tests.contracts.sinks.runs import log_of, spec_of
from tests.contracts.sinks.targets import Target

pytestmark = pytest.mark.slow


def test_a_savepoint_restored_twice_shows_its_rows_once(target: Target) -> None:
    """S1-06, S1-51, S1-52: the first run publishes output that was pending or in progress; the second adds no row.

    Both runs read further rows and drop them before the sink: a restore repeats them by design.
    """
    assert run(spec_of(target, "after-record")) == -signal.SIGKILL, log_of(target)
    job = target.place.job
    shutil.copytree(job / "storage", job / "savepoint")
    content = (job / "run").read_bytes()
    results = []
    for parallelism in (3, 1):
        assert run(replace(spec_of(target, parallelism=parallelism), drops_rows=True)) == 0, log_of(target)
        target.settle()
        results.append(sorted(target.ids()))
        shutil.rmtree(job / "storage")
        shutil.copytree(job / "savepoint", job / "storage")
        restore_point(job / "run", content)
    assert results[0]
    assert len(set(results[0])) == len(results[0])
    assert results[1] == results[0]
