"""docker/: build the image, start the composition, and play the demo's story on it with a Spark worker killed."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stack.demo_api import Api
from stack.demo_live import AllRead
from stack.demo_steps import RECORDS
from stack.launch.java import find_java
from stack.services import free_port
from stack.settings import ROOT
from tests.docker.composition import Composition
from tests.docker.podman import Podman, checkout, pip_mounts, podman
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3000)]

IMAGES = Path(__file__).parent / "images"
PATIENCE_S = 600.0
USER = 10001  #: of the image


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with podman() as engine:
        packages = ("ca-certificates", "python3", "python3-pip")
        engine.bootstrap("bookworm", packages, "localhost/bookworm")
        build(engine, IMAGES / "python.containerfile", IMAGES, "python:3.11-slim-bookworm")
        build(engine, IMAGES / "servers.containerfile", IMAGES, "postgres:16-bookworm")
        engine("tag", "postgres:16-bookworm", "redis:7-bookworm")
        source = checkout(tmp_path_factory.mktemp("source"))
        build(engine, source / "docker/Dockerfile", source, "weir:0.1.0")
        yield engine


def build(engine: Podman, file: Path, context: Path, name: str) -> None:
    engine("build", "--network", "host", *pip_mounts(), "--file", str(file), "--tag", name, str(context))


@pytest.fixture
def composition(engine: Podman) -> Iterator[Composition]:
    names = ("DJANGO_SECRET_KEY", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "WEIR_ADMIN_PASSWORD")
    given = {name: secrets.token_hex(20) for name in names}
    given["WEIR_HTTP_PORT"] = str(free_port())
    told = replace(engine, environment={**engine.environment, **given})
    composition = Composition.read(told, ROOT / "docker/compose.yaml")
    try:
        yield composition
    finally:
        composition.down()


def test_the_story_of_the_demo_is_exact_on_containers(composition: Composition) -> None:
    """Savepoint, a killed Spark worker, stop, restore at another parallelism, drain: every row once."""
    composition.up(spark_worker=2)
    engine = composition.engine
    url = f"http://127.0.0.1:{engine.environment['WEIR_HTTP_PORT']}"
    api = Api.login(url, "operator", engine.environment["WEIR_ADMIN_PASSWORD"])
    volume = Path(engine("volume", "inspect", "--format", "{{.Mountpoint}}", "weir_data").strip())
    flights, output = volume / "data/in", volume / "data/out"
    for folder in (volume / "data", flights, output):
        folder.mkdir()
        os.chown(folder, USER, USER)
    job = int(api.post("jobs/", {"name": "flights", "pipeline": "flights"})["id"])
    params = {"flights_dir": "/data/data/in", "output_dir": "/data/data/out"}
    body = {"parallelism": 2, "params": params, "settings": {"checkpoint_interval_ms": 2000}}
    api.ready_version(job, body, PATIENCE_S)

    slow = feed(flights, 1200)
    try:
        api.operate(job, "start", {}, PATIENCE_S)
        until(lambda: len(api.checkpoints(job)) >= 3, PATIENCE_S, or_else=lambda: str(api.latest_run(job)))
        api.operate(job, "savepoint", {}, PATIENCE_S)
        killed_at = len(api.checkpoints(job))
        engine("kill", worker_with_a_slot(composition))
        until(
            lambda: len(attempts(api, job)) > 1 and len(api.checkpoints(job)) > killed_at,
            PATIENCE_S, or_else=lambda: str(api.latest_run(job)),
        )  # fmt: skip
    finally:
        slow.terminate()
        slow.wait()
    api.operate(job, "stop", {}, PATIENCE_S)
    until(lambda: api.latest_run(job)["state"] == "stopped", PATIENCE_S)

    api.operate(job, "restore", {"checkpoint": api.checkpoints(job)[-1]["id"], "parallelism": 3}, PATIENCE_S)
    assert feed(flights, 12).wait() == 0
    done = AllRead()
    run = int(api.latest_run(job)["id"])
    until(lambda: done.settled(api.run(run), int(api.checkpoints(job)[-1]["number"])), PATIENCE_S)
    api.operate(job, "drain", {}, PATIENCE_S)
    until(lambda: api.run(run)["state"] == "finished", PATIENCE_S)

    found = compared(output)
    assert (found["missing"], found["unexpected"], found["records"]) == (0, 0, RECORDS), found


def attempts(api: Api, job: int) -> list[object]:
    found: list[object] = api.run(int(api.latest_run(job)["id"]))["attempts"]
    return found


def worker_with_a_slot(composition: Composition) -> str:
    """A container of a Spark worker in which an executor runs."""
    workers = composition.containers("spark-worker")
    return next(name for name in workers if "CoarseGrainedExecutorBackend" in composition.engine("top", name, "args"))


def feed(folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Feeds what is not there yet, as the demo does; the job's user may read it."""
    return subprocess.Popen(
        [sys.executable, "-m", "spark_jobs.feeder", "--to", str(folder), "--seconds", str(seconds)],
        cwd=ROOT,
        umask=0o022,
    )


def compared(output: Path) -> dict[str, int]:
    """The comparison of the output with plain Spark on this machine."""
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs.oracle", "--output", str(output)],
        cwd=ROOT, env={**os.environ, "JAVA_HOME": find_java(os.environ) or ""}, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    found: dict[str, int] = json.loads(done.stdout.decode().splitlines()[-1])
    return found
