"""A whole stack in its own folder, started as by `make up`, with the benchmark's pipeline installed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.child import ROOT
from benchmarks.recovery.job import NAME, RecoveryParams
from examples.demo.api import Api
from stack.settings import read_env_file

PATIENCE_S = 240.0
_FOREIGN_VARIABLES = {"DATABASE_URL", "CELERY_BROKER_URL", "SPARK_MASTER", "SPARK_REMOTE"}


@dataclass(frozen=True, slots=True)
class Run:
    """A started run, and where its progress can be observed."""

    id: int
    log: Path
    supervisors: tuple[Path, ...]  #: logs of the workers; one of them supervises the run
    database: "psycopg.Connection[dict[str, Any]]"

    def row(self) -> dict[str, Any]:
        row = self.database.execute(
            "select state, token, live, live_at, failure, now() from weir_run where id = %s", (self.id,)
        ).fetchone()
        assert row is not None, "a run is never deleted"
        return row

    def checkpoints(self, token: int) -> list[dict[str, Any]]:
        """The completed checkpoints of an attempt, oldest first."""
        return self.database.execute(
            "select number, size_bytes, duration_ms, completed_at from weir_checkpoint"
            " where run_id = %s and token = %s and status = 'completed' order by number",
            (self.id, token),
        ).fetchall()


@contextmanager
def stack(var: Path) -> Iterator[None]:
    """Starts the stack, and stops it at the end; logs and data stay."""
    packages = var / "packages"
    _install_pipeline(packages)
    environment = own_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(packages), str(ROOT)])
    command = [sys.executable, "-m", "stack", "--var", str(var)]
    with (var / "stack.log").open("wb") as log:
        up = subprocess.Popen([*command, "up", "--foreground"], cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_for("the stack", lambda: _is_ready(var, up))
        yield
    finally:
        up.terminate()
        up.wait()
        # The exit code does not matter: the measurement is complete, and the harness ends remaining processes.
        subprocess.run([*command, "down"], cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL)


def own_environment() -> dict[str, str]:
    """This environment without settings for another stack, such as its port or its cluster."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _FOREIGN_VARIABLES and not name.startswith("WEIR_")
    }


def _is_ready(var: Path, up: "subprocess.Popen[bytes]") -> bool:
    if up.poll() is not None:
        raise RuntimeError(f"the stack did not start: {var / 'stack.log'}")
    try:
        return bool(json.loads((var / "run/status.json").read_text())["phase"] == "ready")
    except (OSError, ValueError):
        return False


def _install_pipeline(packages: Path) -> None:
    """Writes the metadata of an installed package with a single pipeline."""
    about = packages / "weir_recovery_benchmark-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: weir-recovery-benchmark\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[weir.pipelines]\n{NAME} = benchmarks.recovery.job:PIPELINE\n")


def start(var: Path, params: RecoveryParams, parallelism: int, interval_ms: int) -> Run:
    """Defines the job over REST, as a user would, and starts it."""
    status = read_env_file(var)
    api = Api.login(
        f"http://127.0.0.1:{status['WEIR_HTTP_PORT']}", "operator", (var / "run/password").read_text().strip()
    )
    job = int(api.post("jobs/", {"name": NAME, "pipeline": NAME})["id"])
    version = {
        "parallelism": parallelism,
        "params": {name: getattr(params, name) for name in params.__struct_fields__},
        "settings": {"checkpoint_interval_ms": interval_ms},
    }
    api.ready_version(job, version, PATIENCE_S)
    api.operate(job, "start", {}, PATIENCE_S)
    run_id = int(api.latest_run(job)["id"])
    database = psycopg.connect(status["DATABASE_URL"], autocommit=True, row_factory=psycopg.rows.dict_row)
    logs = var / "log"
    return Run(run_id, logs / f"run-{run_id}.log", (logs / "runs-1.log", logs / "runs-2.log"), database)


def wait_for(what: str, is_reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not is_reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {patience_s:g} s")
        time.sleep(0.05)
