"""docker/: build the image, start the composition, and play the demo's story on it with a Spark worker killed."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from examples.demo.api import Api
from examples.demo.live import InputEndDetector
from examples.demo.steps import RECORDS, REST_FEED_S
from examples.demo.story import SLOW_FEED_S
from stack.launch.java import find_java
from stack.services import free_port
from stack.settings import ROOT
from tests.docker.composition import Composition
from tests.docker.podman import Podman, checkout, pip_mounts, podman
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(3000)]

IMAGES = Path(__file__).parent / "images"
PATIENCE_S = 600.0
USER = 10001  #: of the image
RIGHTS_QUERY = """
    select rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls from pg_roles where rolname = current_user
"""
DATABASES_QUERY = "select array_agg(datname::text) from pg_database where pg_get_userbyid(datdba) = current_user"


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
        build(engine, IMAGES / "examples.containerfile", source, "weir:0.1.0")
        yield engine


def build(engine: Podman, file: Path, context: Path, name: str) -> None:
    engine("build", "--network", "host", *pip_mounts(), "--file", str(file), "--tag", name, str(context))


@pytest.fixture(scope="module")
def composition(engine: Podman) -> Composition:
    """All services, with two Spark workers. They end with the engine."""
    names = ("DJANGO_SECRET_KEY", "POSTGRES_PASSWORD", "WEIR_DB_PASSWORD", "REDIS_PASSWORD", "WEIR_ADMIN_PASSWORD")
    variables = {name: secrets.token_hex(20) for name in names}
    variables["WEIR_HTTP_PORT"] = str(free_port())
    file = ROOT / "docker/compose.yaml"
    optional = set(re.findall(r"\$\{(\w+)", file.read_text()))  # the servers of this test session have set some
    inherited = {name: value for name, value in engine.environment.items() if name not in optional}
    composition = Composition.read(replace(engine, environment={**inherited, **variables}), file)
    composition.up(spark_worker=2)
    return composition


def test_the_role_of_the_console_owns_its_database_and_no_other_right(composition: Composition) -> None:
    ask = f"""
import os, psycopg
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    for query in {RIGHTS_QUERY!r}, {DATABASES_QUERY!r}:
        print(*connection.execute(query).fetchone())
"""
    printed = composition.engine("exec", composition.containers("web")[0], "python", "-c", ask)
    assert printed.splitlines() == ["False False False False False", "['weir']"]


def test_the_story_of_the_demo_is_exact_on_containers(composition: Composition) -> None:
    """Savepoint, a killed Spark worker, stop, restore at another parallelism, drain: every row once."""
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

    slow = feed(flights, SLOW_FEED_S)
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
    assert feed(flights, REST_FEED_S).wait() == 0
    detector = InputEndDetector()
    run = int(api.latest_run(job)["id"])
    until(lambda: detector.is_complete(api.run(run), int(api.checkpoints(job)[-1]["number"])), PATIENCE_S)
    api.operate(job, "drain", {}, PATIENCE_S)
    until(lambda: api.run(run)["state"] == "finished", PATIENCE_S)

    comparison = compared(output)
    assert (comparison["missing"], comparison["unexpected"], comparison["records"]) == (0, 0, RECORDS), comparison


def attempts(api: Api, job: int) -> list[object]:
    attempts: list[object] = api.run(int(api.latest_run(job)["id"]))["attempts"]
    return attempts


def worker_with_a_slot(composition: Composition) -> str:
    """A container of a Spark worker in which an executor runs."""
    workers = composition.containers("spark-worker")
    return next(name for name in workers if "CoarseGrainedExecutorBackend" in composition.engine("top", name, "args"))


def feed(folder: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Feeds what is not there yet, as the demo does; the job's user may read it."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.feeder", "--to", str(folder), "--seconds", str(seconds)],
        cwd=ROOT,
        umask=0o022,
    )


def compared(output: Path) -> dict[str, int]:
    """The comparison of the output with plain Spark on this machine."""
    process = subprocess.run(
        [sys.executable, "-m", "examples.oracle", "--output", str(output)],
        cwd=ROOT, env={**os.environ, "JAVA_HOME": find_java(os.environ) or ""}, stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    comparison: dict[str, int] = json.loads(process.stdout.decode().splitlines()[-1])
    return comparison
