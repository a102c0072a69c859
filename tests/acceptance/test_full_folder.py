"""A sink's folder on a file system that fills up while the job runs: real ENOSPC, on a real Spark."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import OUTAGE_CODE, FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from tests.jobs.gated import Gated
from tests.jobs.live import running
from tests.jobs.numbers import committed, counts, expected_counts, final_counts
from tests.spark import spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = bytes(4096)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {process.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room that is left."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(PAGE)
    return ballast


def test_a_sink_waits_while_its_folder_is_full(tmp_path: Path, disk: Path) -> None:
    """The run names the trouble, uses up no restart (none is allowed here), and its output is exact afterwards."""
    source, output = Gated(total=100), disk / "out"
    job = counts(source, output).compile(2)
    often = CoordinatorSettings(interval_ms=300, min_pause_ms=50)
    with (
        spark_cluster("full folder") as launcher,
        running(job, tmp_path / "state", settings=often, restart=FixedDelay(attempts=0), launcher=launcher) as run,
    ):
        run.wait_for(lambda: final_counts(output) == expected_counts(source.numbers))
        ballast = fill(disk)
        source.total = 200
        run.wait_for(lambda: len([detail for detail in run.records.details if detail["code"] == OUTAGE_CODE]) >= 3)
        assert not run.records.state.is_terminal
        assert {detail["code"] for detail in run.records.details} == {OUTAGE_CODE}
        assert all("No space left on device" in detail["message"] for detail in run.records.details)
        ballast.unlink()
        run.wait_for(lambda: final_counts(output) == expected_counts(source.numbers))
        run.end("drain")
    assert run.records.state is RunState.FINISHED
    rows = [(row["key"], row["n"]) for row in committed(output)]
    assert len(set(rows)) == len(rows), "a count that stands twice was written twice"
