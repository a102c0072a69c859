"""A whole stack on a standalone Spark cluster: slots run in an executor that is no child of the job master."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from stack.launch.java import find_java
from stack.processes import ProcessId, children_of, end, session_members
from stack.services import free_port
from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

CORES = 5


@contextlib.contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[tuple[int, Path]]:
    """Master or worker of a standalone cluster, and whatever it starts. Gives its pid and its log."""
    program = Path(pyspark.__file__).parent / "bin/spark-class"
    argv = [str(program), f"org.apache.spark.deploy.{name.lower()}.{name}", "--host", "127.0.0.1", "--webui-port", "0"]
    environment = {**os.environ, "JAVA_HOME": find_java(os.environ) or "", "SPARK_LOCAL_IP": "127.0.0.1"}
    log = folder / f"{name}.log"
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [*argv, *arguments], cwd=folder, env=environment, stdout=sink, stderr=sink, start_new_session=True
        )
    try:
        yield child.pid, log
    finally:
        end(lambda: session_members(child.pid), grace_s=10)
        child.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The address of a cluster of one worker, and the worker's pid."""
    address = f"spark://127.0.0.1:{(port := free_port())}"
    work = ("--cores", str(CORES), "--memory", "2g", "--work-dir", str(tmp_path / "work"), address)
    with daemon(tmp_path, "Master", "--port", str(port)) as (_, elected):
        until(lambda: "I have been elected leader" in elected.read_text(), PATIENCE_S, or_else=elected.read_text)
        with daemon(tmp_path, "Worker", *work) as (worker, log):
            until(lambda: "Successfully registered with master" in log.read_text(), PATIENCE_S, or_else=log.read_text)
            yield address, worker


def test_start_savepoint_and_drain_on_a_cluster(tmp_path: Path, cluster: tuple[str, int]) -> None:
    """Every word once, though slots and job master share only network, storage and the Python environment."""
    address, worker = cluster
    checkout = Checkout(tmp_path / "var")
    try:
        del checkout.environment["SPARK_LOCAL_IP"]  # of this test session
        checkout.run("up", SPARK_MASTER=address)
        words = WordCount(checkout, tmp_path)
        assert words.slot_pid(0) in below(worker), "the slot is the cluster's, not a local one"
        until(words.is_exact, PATIENCE_S)

        words.api.operate(words.job, "savepoint", {}, PATIENCE_S)
        assert "savepoint" in {row["kind"] for row in words.api.checkpoints(words.job)}
        words.feed(5)
        until(words.is_exact, PATIENCE_S)  # a drain ends the sources where they are
        words.api.operate(words.job, "drain", {}, PATIENCE_S)

        assert words.run["state"] == "finished"
        assert words.is_exact()
    finally:
        checkout.remove()
    assert checkout.left == []


def below(pid: int) -> set[int]:
    this = ProcessId.of(pid)
    assert this is not None
    return {process.pid for process in children_of([this])}
