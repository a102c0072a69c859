"""Versions of a job with different packages, on a whole stack whose slots are processes of two executors."""

from __future__ import annotations

import json
import os
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
from tests.packages import word_files, write_project
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
        self.input.mkdir()
        password = (checkout.var / "run/password").read_text().strip()
        self.url = checkout.status()["url"].rstrip("/")
        self.token = Console(self.url).token("operator", password, ["define", "operate"])
        self.api = Api(self.url, self.token)

    def package(self, word: str) -> str:
        """The digest of an uploaded package whose job marks lines with `word`."""
        project = write_project(self.folder / word, self.name, word_files(word, self.name))
        variables = {"WEIR_URL": self.url, "WEIR_TOKEN": self.token, "PIP_NO_INDEX": "1"}
        result = CliRunner().invoke(main, ["package", str(project), "--json"], env=variables)
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
