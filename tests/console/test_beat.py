"""Celery's beat as a process of its own, with the command line of the stack, under a clock that the test moves."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from stack.settings import ROOT
from tests.waiting import until
from weir.control.processes import BEAT

TASK = b"console.tasks.reconcile"
DAY_S = 24 * 3600


class Beat:
    """`make up`'s beat. Its messages stay in the broker, as there is no worker."""

    def __init__(self, folder: Path, broker: str) -> None:
        self._folder = folder
        self._broker = redis.Redis.from_url(broker)
        self.move_clock(0)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.console.programs.beat", str(self._folder / "offset"), *BEAT]
        self._process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "WEIR_VAR": str(self._folder)})

    def move_clock(self, offset_s: int) -> None:
        """Sets the clock ahead of the machine's."""
        (self._folder / "new").write_text(str(offset_s))
        (self._folder / "new").replace(self._folder / "offset")

    def expect_messages(self) -> None:
        """Waits for two messages of the reconciler from now on: the first may have been on its way."""
        for _ in range(2):
            self._broker.delete("housekeeping")
            until(lambda: any(TASK in message for message in self._broker.lrange("housekeeping", 0, -1)), 20)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def beat(tmp_path: Path, broker_url: str) -> Iterator[Beat]:
    (tmp_path / "run").mkdir()
    beat = Beat(tmp_path, broker_url)
    yield beat
    beat.stop()


@pytest.mark.timeout(180)
def test_a_clock_that_jumps_ahead_and_back_silences_no_task(beat: Beat, tmp_path: Path) -> None:
    """After a day ahead, beat sent nothing for a day, also if it was started again: a file had the times."""
    beat.expect_messages()
    beat.move_clock(DAY_S)
    beat.expect_messages()
    beat.move_clock(0)
    beat.expect_messages()
    beat.stop()
    beat.start()
    beat.expect_messages()
    assert list((tmp_path / "run").iterdir()) == []
