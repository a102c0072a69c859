"""The three faults. Each function returns the wall clock's time (s) of its fault."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.recovery.job import RAISE, RAISED, RecoveryParams
from benchmarks.recovery.place import Run, wait_for


def kill_slot(run: Run, params: RecoveryParams) -> float:
    """Sends SIGKILL to the Python process of a slot."""
    slots = run.row()["live"]["slots"]
    victim = int(random.choice(slots)["pid"])  # noqa: S311 - not used for secrets
    at = time.time()
    os.kill(victim, signal.SIGKILL)
    return at


def kill_master(run: Run, params: RecoveryParams) -> float:
    """Sends SIGKILL to the job master. Its JVM and slots exit by themselves or are ended by the supervisor."""
    arguments = ["runtime.launch.spark", "run", str(run.id)]
    (victim,) = [process for process in psutil.process_iter(["cmdline"]) if _ends(process, arguments)]
    at = time.time()
    victim.kill()
    return at


def raise_in_subtask(run: Run, params: RecoveryParams) -> float:
    """Makes a function of the job raise. The time is that of the exception: the function renames the order file."""
    order, raised = Path(params.orders_dir, RAISE), Path(params.orders_dir, RAISED)
    raised.unlink(missing_ok=True)
    order.touch()
    wait_for("the exception", raised.exists)
    return raised.stat().st_ctime


def _ends(process: psutil.Process, arguments: list[str]) -> bool:
    return list(process.info["cmdline"] or ())[-4:-1] == arguments


FAULTS: dict[str, Callable[[Run, RecoveryParams], float]] = {
    "exception": raise_in_subtask,
    "slot killed": kill_slot,
    "master killed": kill_master,
}
