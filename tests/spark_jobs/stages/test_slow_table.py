"""A slow table from Spark as the build side of a join: checkpoints, and a SIGKILL of its stage and of a slot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from spark_jobs.sources.splits import InputFolder, split_name
from tests.jobs.gated import Gated
from tests.jobs.live import Run, running
from tests.jobs.numbers import committed
from tests.spark import spark_cluster
from tests.spark_jobs.stages.slow_table import ROWS, SPLITS, let, source
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
PROBES = 50  #: rows in each of 4 splits
STAGE_S = 300.0  #: Spark may take a minute to start on a busy machine


def joining(root: Path, probes: Gated) -> CompiledJob:
    flow = Dataflow("joining")
    build = flow.source("table", source(root))
    joined = flow.source("probes", probes).join_broadcast("join", build, on=["value"], take=["label"])
    joined.sink("out", ParquetSink(str(root / "out")))
    return flow.compile(2)


@contextmanager
def stage(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The stage as a process group of its own, as its supervisor starts it; killed at the end, if it lives."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "tests.spark_jobs.stages.slow_table", str(root)]
    with (root / "stage.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def built(run: Run) -> int:
    """Rows that the two subtasks of the join have, in all, since the attempt began."""
    return int(run.operator("join").get("records_in", 0))


def test_a_slow_table_builds_while_checkpoints_complete_and_is_read_on_after_a_sigkill(tmp_path: Path) -> None:
    """S0-69: on two executors. The first splits are read while later ones are computed."""
    probes, folder, output = Gated(total=PROBES), InputFolder(tmp_path / "table"), tmp_path / "out"
    settings = CoordinatorSettings(interval_ms=1_000, min_pause_ms=100)
    restart = FixedDelay(attempts=3, delay_ms=10)
    let(tmp_path, 4)
    with (
        spark_cluster("slow table") as launcher,
        running(
            joining(tmp_path, probes), tmp_path / "storage", settings=settings, restart=restart, launcher=launcher
        ) as run,
    ):
        with stage(tmp_path) as first:
            until(lambda: len(folder.splits()) == 4, STAGE_S, or_else=lambda: log_of(tmp_path))
            run.wait_for(lambda: built(run) == 2 * 4 * ROWS // SPLITS)
            run.checkpoints(2)
            kill(first)
        before = {number: (folder.path / split_name(number)).stat() for number in folder.splits()}
        os.kill(run.records.live["slots"][0]["pid"], signal.SIGKILL)
        run.wait_for(lambda: run.records.token == 2)
        let(tmp_path, 12)
        with stage(tmp_path) as second:
            until(lambda: len(folder.splits()) == 12, STAGE_S, or_else=lambda: log_of(tmp_path))
            run.wait_for(lambda: built(run) == 2 * 8 * ROWS // SPLITS)
            run.checkpoints(2)
            assert run.operator("probes")["state"] == "waits for a build side"
            let(tmp_path, SPLITS)
            until(lambda: second.poll() is not None, STAGE_S)
            assert second.returncode == 0, log_of(tmp_path)
        run.wait_for(lambda: len(committed(output)) == 4 * PROBES)
        # Read on, not anew. A slot's figures come with its heartbeats, so they may be behind what is committed.
        run.wait_for(lambda: run.operator("table")["records_out"] >= 16 * ROWS // SPLITS)
        assert run.operator("table")["records_out"] == 16 * ROWS // SPLITS
        assert FailureReason.DECLINED_TASK_NOT_READY not in {report.reason for report in run.records.reports}
        run.end("drain")
    assert {number: (folder.path / split_name(number)).stat() for number in before} == before
    rows = sorted((row["value"], row["label"]) for row in committed(output))
    assert rows == sorted((value, value * 31 % 7) for value in range(PROBES) for _ in range(4))


def log_of(root: Path) -> str:
    return (root / "stage.log").read_text()[-3_000:]
