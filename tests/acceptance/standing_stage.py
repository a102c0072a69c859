"""The process of a stage that stands beside a run, and its end by SIGKILL at a moment that a test names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.acceptance.test_kill_dash_nine import command_of
from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.waiting import until

Found = TypeVar("Found")


def stage(words: WordCount) -> dict[str, Any]:
    (row,) = words.run["standing_stages"]
    return dict(row)


def stage_pid(words: WordCount, kind: str, pipeline: str, operator: str) -> int:
    """The process of the stage; it leads a group with its JVM. 0: there is none, or there are several."""
    command = ("stand", kind, "--pipeline", pipeline, "--operator", operator, "--run", str(words.run["id"]))
    arguments = "".join(f"{word}\0" for word in command).encode()
    folders = [p for p in Path("/proc").iterdir() if p.name.isdigit() and arguments in command_of(int(p.name))]
    return int(folders[0].name) if len(folders) == 1 else 0


def kill_when(words: WordCount, pid: Callable[[], int], look: Callable[[], Found | None]) -> Found:
    """SIGKILL to the stage and its JVM while `look` finds something. Its group is stopped first, to look again.

    `look` must be quick and may find too much, since the second look is made while the group stands still. One that
    asks the API, or reads the newer of two facts first, misses a short moment on a slow machine.
    """
    for _ in range(40):
        group = until(pid, PATIENCE_S)
        words.feed(1)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if look() is not None:
                os.killpg(group, signal.SIGSTOP)
                if (result := look()) is not None:
                    os.killpg(group, signal.SIGKILL)
                    return result
                os.killpg(group, signal.SIGCONT)
    raise AssertionError("the moment never came")
