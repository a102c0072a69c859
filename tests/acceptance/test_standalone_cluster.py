"""A whole stack on a standalone Spark cluster: slots run in an executor that is no child of the job master."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from stack.launch.java import find_java
from stack.processes import ProcessId, children_of, end_processes, session_members
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
        end_processes(lambda: session_members(child.pid), grace_s=10)
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


#: A job master's Spark, which asks for `slots` and prints its view of the cluster until its stdin ends.
STAND = """
import sys, threading
from runtime.launch.spark import SparkLauncher

name, address, slots = *sys.argv[1:3], int(sys.argv[3])
launcher = SparkLauncher(name, address)
context = launcher.open_context(slots)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.wait(0.2):
    print(launcher._slot_count(context), launcher._standalone.shortage(context), flush=True)
launcher.close()
"""


@contextlib.contextmanager
def application(name: str, address: str, slots: int, sees: str) -> Iterator[None]:
    """An application that asks for `slots`, and sees this: how many it has, and who holds the others."""
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=512m pyspark-shell"}
    child = subprocess.Popen(
        [sys.executable, "-c", STAND, name, address, str(slots)],
        env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    lines: list[str] = []

    def is_seen() -> bool:
        assert child.stdout is not None
        lines.append(child.stdout.readline().strip())
        return lines[-1] == sees

    try:
        until(is_seen, PATIENCE_S, or_else=lambda: str(lines[-5:]))
        yield
    finally:
        child.communicate(timeout=PATIENCE_S)


@pytest.mark.long
def test_a_shortage_names_the_applications_that_hold_the_cores(cluster: tuple[str, int]) -> None:
    """The cores that an application holds now count, not those that it has asked for."""
    address, _ = cluster
    has = "the cluster has 5 cores on 1 worker"
    with (
        application("first", address, 4, f"4 {has}"),
        application("second", address, 3, f"1 held by first (4); {has}"),
        application("third", address, 2, f"0 held by first (4), second (1); {has}"),
    ):
        pass


def below(pid: int) -> set[int]:
    this = ProcessId.of(pid)
    assert this is not None
    return {process.pid for process in children_of([this])}
