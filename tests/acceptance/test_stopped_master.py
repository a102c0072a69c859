"""A job master that is itself stopped for a while, on a whole stack whose slots are processes of other JVMs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_kill_dash_nine import master_pid
from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.spark import MASTER
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

STOPPED_S = 25  #: more than twice the heartbeat timeout


@pytest.fixture
def words(tmp_path: Path) -> Iterator[WordCount]:
    checkout = Checkout(tmp_path / "var")
    try:
        checkout.run("up", SPARK_MASTER=MASTER)
        words = WordCount(checkout, tmp_path)
        until(words.is_exact, PATIENCE_S)
        yield words
    finally:
        checkout.remove()


def test_sigstop_of_the_job_master_for_25_s(words: WordCount) -> None:
    """The slots beat on meanwhile, so none is blamed: the same attempt goes on, and no restart is counted."""
    before, master, newest = words.run, master_pid(words), words.newest_checkpoint()
    os.kill(master, signal.SIGSTOP)
    try:
        words.feed(5)
        time.sleep(STOPPED_S)
    finally:
        os.kill(master, signal.SIGCONT)
    until(lambda: words.goes_on(newest), PATIENCE_S)
    words.feed(5)
    until(words.is_exact, PATIENCE_S)
    after = words.run
    assert master_pid(words) == master
    assert after["token"] == before["token"]
    assert len(after["attempts"]) == len(before["attempts"]) == 1
    assert after["live"]["restarts"] == 0
    assert [slot["pid"] for slot in after["live"]["slots"]] == [slot["pid"] for slot in before["live"]["slots"]]
    words.api.operate(words.job, "drain", {}, PATIENCE_S)
    assert words.is_exact()
