"""Versions of a job with different packages, on a whole stack whose slots are processes of two executors."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from examples.demo.api import Api
from runtime.io.package_cache import package_path
from tests.acceptance.word_count import PATIENCE_S
from tests.connect_server import connect_server
from tests.packages import compiled_mark, stream_job, word_files, write_project
from tests.s3 import BUCKET, S3Server
from tests.spark import MASTER
from tests.stack.checkout import Checkout
from tests.waiting import until
from weir.control.__main__ import main
from weir.control.console import Console

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_200)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    checkout = Checkout(tmp_path_factory.mktemp("packages") / "var")
    try:
        checkout.run("up", SPARK_MASTER=MASTER)
        yield checkout
    finally:
        checkout.remove()


class Marks:
    """A job that marks lines with a word of its code: its packages, inputs and outputs."""

    def __init__(self, checkout: Checkout, folder: Path, name: str) -> None:
        self.checkout, self.folder, self.name = checkout, folder, name
        self.input, self.output = folder / "in", folder / "out"
        self.input.mkdir(parents=True)
        password = (checkout.var / "run/password").read_text().strip()
        self.url = checkout.status()["url"].rstrip("/")
        self.token = Console(self.url).token("operator", password, ["define", "operate"])
        self.api = Api(self.url, self.token)

    def package(self, word: str, *, requires: str = "", **files: str) -> str:
        """The digest of an uploaded package whose job marks lines with `word`. `files`: modules by name.

        `requires`: a further requirement. Where the index does not answer, the test is skipped.
        """
        modules = {f"{module}.py": text for module, text in files.items()}
        requirements = ("weir-streams", *([requires] if requires else []))
        project = write_project(
            self.folder / word, self.name, word_files(word, self.name) | modules, requires=requirements
        )
        variables = {"WEIR_URL": self.url, "WEIR_TOKEN": self.token, "PIP_NO_INDEX": "" if requires else "1"}
        result = CliRunner().invoke(main, ["package", str(project), "--json"], env=variables)
        if requires and "No matching distribution" in result.output:
            pytest.skip(f"pip cannot install {requires} here")
        assert result.exit_code == 0, result.output
        return str(json.loads(result.stdout)["digest"])

    def define(self, digest: str, *, job: int | None = None, **settings: Any) -> tuple[int, int]:
        """The ids of the job and of a new version with the package."""
        if job is None:
            job = int(self.api.post("jobs/", {"name": self.name, "pipeline": self.name})["id"])
        is_batch = settings.get("execution_mode") == "batch"
        params = {"lines_dir": str(self.input), "output_dir": str(self.output), "bounded": is_batch}
        settings = {"checkpoint_interval_ms": 1000, "restart_strategy": "none", **settings}
        body = {"parallelism": 2, "params": params, "settings": settings, "package": digest}
        return job, int(self.api.ready_version(job, body, PATIENCE_S)["id"])

    def feed(self, *lines: str) -> None:
        for line in lines:
            hidden = self.input / f".{line}"
            hidden.write_text(f"{line}\n")
            hidden.rename(self.input / f"{line}.txt")

    @property
    def committed(self) -> Counter[str]:
        files = [path for path in self.output.glob("*.parquet") if path.name[0] not in "._"]
        return Counter(row["line"] for path in files for row in pq.read_table(path).to_pylist())

    def until_committed(self, *lines: str) -> None:
        until(lambda: self.committed == Counter(lines), PATIENCE_S, or_else=lambda: str(self.committed))

    def savepoint(self, job: int) -> int:
        """The savepoint of the newest stop."""
        return [int(each["id"]) for each in self.api.checkpoints(job) if each["kind"] == "stop"][-1]


def test_each_version_runs_its_package_and_a_rollback_runs_the_earlier_bytes(stack: Checkout, tmp_path: Path) -> None:
    """A module and a data file of the package both mark the lines."""
    marks = Marks(stack, tmp_path, "wordjob")
    hey, there = marks.package("hey"), marks.package("there")
    job, first = marks.define(hey)
    _, second = marks.define(there, job=job)
    marks.feed("a", "b")
    marks.api.operate(job, "start", {"version": first}, PATIENCE_S)
    marks.until_committed("hey hey a", "hey hey b")

    marks.api.operate(job, "stop", {}, PATIENCE_S)
    marks.api.operate(job, "restore", {"checkpoint": marks.savepoint(job), "version": second}, PATIENCE_S)
    marks.feed("c")
    marks.until_committed("hey hey a", "hey hey b", "there there c")

    params = {"checkpoint": marks.savepoint(job), "version": first, "accept_repeated_output": True}
    marks.api.operate(job, "rollback", params, PATIENCE_S)
    marks.feed("d")
    lines = ["hey hey a", "hey hey b", "there there c"]
    until(lambda: marks.committed["hey hey d"] == 1, PATIENCE_S)
    assert marks.committed >= Counter(lines)
    cache = stack.var / "packages"
    assert sorted(path.name for path in cache.iterdir()) == sorted([hey, there])
    marks.api.operate(job, "drain", {}, PATIENCE_S)


def run_side_by_side(checkout: Checkout, folder: Path) -> None:
    """Two jobs with conflicting versions of a compiled library run at the same time, each from its own package."""
    jobs = {}
    for version in ("5.10.0", "5.11.0"):
        marks = Marks(checkout, folder / version, f"job{version.replace('.', '')}")
        init = compiled_mark("ujson")
        digest = marks.package("hey", requires=f"ujson=={version}", __init__=init)
        job, _ = marks.define(digest)
        jobs[marks] = job, f'["{version}","{digest}"] hey'
    for marks, (job, _) in jobs.items():
        marks.feed("a")
        marks.api.operate(job, "start", {}, PATIENCE_S)
    for marks, (_, mark) in jobs.items():
        marks.until_committed(f"{mark} a")
    for line in ("b", "c"):  # while both run
        for marks in jobs:
            marks.feed(line)
    for marks, (job, mark) in jobs.items():
        marks.until_committed(*(f"{mark} {line}" for line in "abc"))
        assert marks.api.latest_run(job)["state"] == "running"
    for marks, (job, _) in jobs.items():
        marks.api.operate(job, "drain", {}, PATIENCE_S)


def test_two_jobs_run_conflicting_versions_of_a_compiled_library_beside_each_other(
    stack: Checkout, tmp_path: Path
) -> None:
    run_side_by_side(stack, tmp_path)


@pytest.mark.long
def test_two_jobs_on_shared_executors_run_conflicting_versions_of_a_compiled_library(tmp_path: Path) -> None:
    """The tasks of both jobs run in executors of one Spark Connect server."""
    checkout = Checkout(tmp_path / "var")
    with connect_server(tmp_path) as server:
        try:
            checkout.environment.pop("SPARK_LOCAL_IP", None)  # of this test session
            checkout.run("up", SPARK_REMOTE=server.url)
            run_side_by_side(checkout, tmp_path)
        finally:
            checkout.remove()


def test_a_standing_stage_runs_a_package_of_a_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    """Upload, description, job master, slots, the driver of the stage and its Python workers read it from the bucket.

    No process finds the package in the cache of the host.
    """
    checkout = Checkout(tmp_path / "var")
    storage = f"s3://{BUCKET}/packages-of-a-stack"
    checkout.environment |= s3_server.environment
    try:
        checkout.run("up", SPARK_MASTER=MASTER, WEIR_STORAGE=storage)
        marks = Marks(checkout, tmp_path, "streamjob")
        digest = marks.package("hey", job=stream_job("hey", "streamjob"))
        assert s3_server.keys("packages-of-a-stack/packages/") == [f"packages-of-a-stack/{package_path(digest)}"]
        job, _ = marks.define(digest)
        cache = checkout.var / "packages"
        cache.rename(tmp_path / "cached")
        marks.feed("a")
        marks.api.operate(job, "start", {}, PATIENCE_S)
        marks.until_committed("hey hey a")
        assert [path.name for path in cache.iterdir()] == [digest]
        marks.feed("b")
        marks.until_committed("hey hey a", "hey hey b")
        marks.api.operate(job, "stop", {}, PATIENCE_S)
    finally:
        checkout.remove()


def test_a_full_disk_below_the_cache_is_named_and_the_run_goes_on_once_there_is_space(
    stack: Checkout, tmp_path: Path
) -> None:
    marks = Marks(stack, tmp_path, "fulljob")
    job, _ = marks.define(marks.package("hey"), restart_strategy="fixed_delay")
    cache = stack.var / "packages"
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(cache)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {process.stderr.strip()}")
    try:
        ballast = cache / ".ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        marks.feed("a")
        marks.api.post(f"jobs/{job}/operations/", {"kind": "start"})
        until(lambda: "Storage is full" in str(_health(marks, job)), PATIENCE_S)
        health = _health(marks, job)
        assert health["level"] == "failed"
        assert "No space left on device" in str(health["findings"])
        assert marks.api.latest_run(job)["state"] == "restarting"
        ballast.unlink()
        marks.until_committed("hey hey a")
        until(lambda: _health(marks, job)["level"] != "failed", PATIENCE_S)
        marks.api.operate(job, "drain", {}, PATIENCE_S)
    finally:
        subprocess.run(["umount", "--lazy", str(cache)], check=True)


def _health(marks: Marks, job: int) -> dict[str, Any]:
    health: dict[str, Any] = marks.api.get(f"jobs/{job}/")["health"] or {}
    return health


@pytest.mark.long
def test_slots_on_a_spark_connect_server_run_the_package_of_their_version(tmp_path: Path) -> None:
    """The server keeps its Python processes for further tasks: each package has a session of its own."""
    checkout = Checkout(tmp_path / "var")
    with connect_server(tmp_path) as server:
        try:
            checkout.environment.pop("SPARK_LOCAL_IP", None)  # of this test session
            checkout.run("up", SPARK_REMOTE=server.url)
            marks = Marks(checkout, tmp_path, "wordjob")
            job, first = marks.define(marks.package("hey"))
            _, second = marks.define(marks.package("there"), job=job)
            marks.feed("a")
            marks.api.operate(job, "start", {"version": first}, PATIENCE_S)
            marks.until_committed("hey hey a")
            marks.api.operate(job, "stop", {}, PATIENCE_S)
            marks.api.operate(job, "restore", {"checkpoint": marks.savepoint(job), "version": second}, PATIENCE_S)
            marks.feed("b")
            marks.until_committed("hey hey a", "there there b")
            marks.api.operate(job, "drain", {}, PATIENCE_S)
        finally:
            checkout.remove()


def test_a_run_in_batch_executes_its_package(stack: Checkout, tmp_path: Path) -> None:
    marks = Marks(stack, tmp_path, "batchjob")
    marks.feed("a", "b")
    job, _ = marks.define(marks.package("hey"), execution_mode="batch")
    marks.api.operate(job, "start", {}, PATIENCE_S)
    until(
        lambda: marks.api.latest_run(job)["state"] == "finished",
        PATIENCE_S,
        or_else=lambda: str(marks.api.latest_run(job)),
    )
    assert marks.committed == Counter(["hey hey a", "hey hey b"])


def test_a_damaged_package_fails_the_run_and_is_named(stack: Checkout, tmp_path: Path) -> None:
    marks = Marks(stack, tmp_path, "damagedjob")
    digest = marks.package("hey")
    job, _ = marks.define(digest)
    stored = stack.var / "storage" / package_path(digest)
    stored.write_bytes(stored.read_bytes()[:-30])
    os.rename(stack.var / "packages" / digest, tmp_path / "cached")  # noqa: PTH104
    marks.api.post(f"jobs/{job}/operations/", {"kind": "start"})
    until(lambda: marks.api.latest_run(job)["state"] == "failed", PATIENCE_S)
    failure = marks.api.latest_run(job)["failure"]
    assert failure["code"] == "bad-package"
    assert f"{stored}: its archive is damaged" in failure["message"]
