"""Checkpoints in a bucket, with slots as processes of Spark executors that are killed: no folder holds state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.store import open_store
from runtime.launch import spark
from runtime.launch.spark import SparkLauncher
from stack.processes import MARK
from tests.jobs.live import Run, running
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.s3 import BUCKET, ROOT, S3Server
from tests.spark import spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

OFTEN = CoordinatorSettings(interval_ms=300, min_pause_ms=50)
SOURCE = Numbers(total=20_000, splits=4, batch=4, keys=500, hurry=50)  # slow enough not to end before the stop
KILLS = 3


@pytest.fixture(scope="module")
def launcher(s3_server: S3Server) -> Iterator[SparkLauncher]:
    """The executors have the environment of a host that may use the bucket, also if an earlier test began the JVM."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
            patch.setitem(spark._SPARK_SETTINGS, f"spark.executorEnv.{name}", value)
        with spark_cluster("bucket") as launcher:
            yield launcher


def kill_slot(run: Run, number: int) -> None:
    before = run.records.token
    run.wait_for(lambda: len(run.records.live.get("slots", [])) == 2)
    os.kill(next(row["pid"] for row in run.records.live["slots"] if row["index"] == number), signal.SIGKILL)
    run.wait_for(lambda: run.records.token > before)
    run.checkpoints(2)


def test_killed_slots_a_stop_and_a_restore_at_three_leave_the_output_exact(
    launcher: SparkLauncher, bucket_uri: str, tmp_path: Path
) -> None:
    source = replace(SOURCE, slow_until=str(tmp_path / "hurry"))
    flow, restart = counts(source, tmp_path / "out"), FixedDelay(attempts=KILLS, delay_ms=50)
    with running(flow.compile(2), bucket_uri, settings=OFTEN, restart=restart, launcher=launcher, retained=3) as run:
        run.checkpoints(2)
        for number in range(KILLS):
            kill_slot(run, number % 2)
        savepoint = run.end("stop")
    files = open_store(bucket_uri).sizes("")
    assert any(path.startswith(f"{savepoint}/") for path in files), (savepoint, sorted(files)[:5])
    assert not [path for path in files if path.startswith("markers/")], "markers are removed"
    assert len({path.split("/")[0] for path in files}) <= 5, "retention and the sweep have deleted the rest"
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    (tmp_path / "hurry").touch()
    records = MemoryRunStore(token=Token(run.records.token + 1), restore_from=savepoint)
    records.reserve_ids_above(run.manifests[-1].checkpoint, run.manifests[-1].token)
    with running(flow.compile(3), bucket_uri, records, OFTEN, restart=restart, launcher=launcher) as again:
        again.join()
    assert records.failure is None
    assert final_counts(tmp_path / "out") == expected_counts(SOURCE)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_keeps_its_checkpoints_in_a_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    """The whole stack: kills, stop, restore at another parallelism and drain by the console."""
    environment = {**os.environ, **s3_server.environment, "WEIR_VAR": str(tmp_path / "var"), "PYTHONPATH": str(ROOT)}
    for variable in (MARK, "DATABASE_URL", "CELERY_BROKER_URL", "WEIR_INPUTS", "WEIR_LOGS"):
        environment.pop(variable, None)
    environment["WEIR_STORAGE"] = f"s3://{BUCKET}/demo"
    command = [sys.executable, "-m", "examples", "demo", "--exit"]
    demo = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "demo: exact, 336776 records" in demo.stdout, demo.stdout + demo.stderr
    assert s3_server.keys("demo/")
    assert not list((tmp_path / "var" / "storage").iterdir())
