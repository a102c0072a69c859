"""A whole stack on a Spark Connect server: the job master has no JVM, and the run waits for a server that is away."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.acceptance.test_standalone_cluster import below
from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.connect_server import connect_server
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(1_200)]


def job_master(run: int) -> psutil.Process:
    """The process of the job master of a run."""
    command = ["runtime.launch.spark", "run", str(run)]
    return next(each for each in psutil.process_iter(["cmdline"]) if (each.info["cmdline"] or [])[2:5] == command)


def test_start_savepoint_lost_server_and_drain_on_a_spark_connect_server(tmp_path: Path) -> None:
    """Every word once, by one job master, which starts no Spark of its own."""
    checkout = Checkout(tmp_path / "var")
    with connect_server(tmp_path) as server:
        try:
            checkout.environment.pop("SPARK_LOCAL_IP", None)  # of this test session
            checkout.run("up", SPARK_REMOTE=server.url)
            words = WordCount(checkout, tmp_path)
            assert words.slot_pid(0) in below(server.pid), "the slot is the server's"
            until(words.is_exact, PATIENCE_S)
            master = job_master(words.run["id"])
            assert master.children(recursive=True) == []

            words.api.operate(words.job, "savepoint", {}, PATIENCE_S)
            server.kill()
            words.feed(5)
            until(lambda: words.run["state"] == "waiting", PATIENCE_S, or_else=lambda: str(words.run))
            until(lambda: "does not answer" in str(words.run["live"]), PATIENCE_S, or_else=lambda: str(words.run))
            server.start()
            until(words.is_exact, PATIENCE_S, or_else=lambda: str(words.run))
            assert job_master(words.run["id"]) == master

            words.api.operate(words.job, "drain", {}, PATIENCE_S)
            assert words.run["state"] == "finished"
            assert words.is_exact()
        finally:
            checkout.remove()
    assert checkout.left == []
