"""Real processes and real kills on the whole stack: whatever dies or hangs, every word is counted exactly once.

One unbounded word count runs through all tests. Each one hurts something, feeds more text meanwhile, and waits until
the committed counts are those of everything fed so far: a lost line would leave them too low for ever, a repeated one
too high.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from stack.processes import marked_processes
from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.master.test_epochs import check_log
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def words(checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> WordCount:
    words = WordCount(checkout, tmp_path_factory.mktemp("words"))
    until(words.is_exact, PATIENCE_S)
    return words


def survive(words: WordCount, checkpoint: int = 0) -> None:
    """The job must go on by itself, from `checkpoint` or a newer one, and be exact with what is fed meanwhile."""
    assert words.restored_number() >= checkpoint
    before = words.newest_checkpoint()
    words.feed(5)
    until(lambda: words.goes_on(before), PATIENCE_S)
    words.feed(5)
    until(words.is_exact, PATIENCE_S)


def test_sigkill_of_a_slot(words: WordCount) -> None:
    """S0-11, S4-42: all of it starts again, in a new attempt, from the newest completed checkpoint."""
    token, checkpoint = words.run["token"], words.newest_checkpoint()
    os.kill(words.slot_pid(1), signal.SIGKILL)
    until(lambda: words.run["token"] > token and words.restored_number() > 0, PATIENCE_S)
    survive(words, checkpoint)


def test_sigkill_of_the_job_master(words: WordCount) -> None:
    """Its supervisor starts another one with a newer token."""
    token, checkpoint = words.run["token"], words.newest_checkpoint()
    os.kill(master_pid(words), signal.SIGKILL)
    until(lambda: words.run["token"] > token and words.restored_number() > 0, PATIENCE_S)
    survive(words, checkpoint)


def test_sigkill_of_the_worker_that_holds_the_run(words: WordCount) -> None:
    """Another worker claims the run when its lease has stood still."""
    owner, checkpoint = words.run["lease_owner"], words.newest_checkpoint()
    os.kill(int(owner.split(":")[1]), signal.SIGKILL)
    until(lambda: words.run["lease_owner"] not in ("", owner) and words.restored_number() > 0, PATIENCE_S)
    survive(words, checkpoint)


def test_sigkill_of_postgres(words: WordCount) -> None:
    """S1-04: it is brought back after 5 s; records flow meanwhile and completion waits. Nobody is restarted."""
    token = words.run["token"]
    os.kill(words.checkout.row("postgres")["pid"], signal.SIGKILL)
    words.feed(5)
    until(lambda: comes_back(words), PATIENCE_S)
    survive(words)
    assert words.run["token"] == token, "an outage of Postgres is no reason to restart a healthy run"


@pytest.mark.long
def test_sigstop_of_a_slot_for_20_s(words: WordCount) -> None:
    """S1-11: it is replaced after the heartbeat timeout; when it wakes up, nothing that it does counts."""
    token, pid, checkpoint = words.run["token"], words.slot_pid(0), words.newest_checkpoint()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(20)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    until(lambda: words.run["token"] > token and words.restored_number() > 0, PATIENCE_S)
    survive(words, checkpoint)


@pytest.mark.long
def test_sigkill_of_the_job_master_and_of_the_reconciler_within_a_rollback(words: WordCount) -> None:
    """The next attempt takes the stop, and the next pass requests the restore. No input comes, so no output repeats."""
    checkpoint, before = words.api.checkpoints(words.job)[-1], words.run["id"]
    params = {"checkpoint": checkpoint["id"], "accept_repeated_output": True}
    operation = words.api.post(f"jobs/{words.job}/operations/", {"kind": "rollback", "params": params})
    os.kill(master_pid(words), signal.SIGKILL)
    os.kill(words.checkout.row("housekeeping")["pid"], signal.SIGKILL)
    until(lambda: words.api.get(f"operations/{operation['id']}/")["state"] in ("succeeded", "failed"), PATIENCE_S)
    outcome = words.api.get(f"operations/{operation['id']}/")
    assert (outcome["state"], outcome["error"]) == ("succeeded", None)
    run = words.run
    assert (run["id"], run["restore_checkpoint"]) == (outcome["result"]["run"], checkpoint["id"])
    assert run["id"] > before
    words.feed(5)
    until(words.is_exact, PATIENCE_S)


def test_then_rescale_to_3_and_drain(words: WordCount) -> None:
    """S0-28, S0-29, S3-19: with everything that befell it, the job stops, goes on at another parallelism, and ends."""
    before = words.run["id"]
    words.feed(5)
    words.api.operate(words.job, "rescale", {"parallelism": 3}, PATIENCE_S)
    assert (words.run["id"] > before, words.run["parallelism"]) == (True, 3)
    until(words.is_exact, PATIENCE_S)
    words.api.operate(words.job, "drain", {}, PATIENCE_S)
    assert words.run["state"] == "finished"
    assert words.is_exact()
    assert not list(words.output.glob(".weir-*")), "leftovers"
    assert check_log(words.output) > 0, "each file that is visible is in one epoch of the commit log"


def master_pid(words: WordCount) -> int:
    """The job master: the process of this stack that was started for the run."""
    command = f"runtime.launch.spark\0run\0{words.run['id']}\0".encode()
    pids = [process.pid for process in marked_processes(words.checkout.var) if command in command_of(process.pid)]
    assert len(pids) == 1, pids
    return pids[0]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def comes_back(words: WordCount) -> bool:
    """Whether the console answers again."""
    try:
        return bool(words.run)
    except Exception:
        return False
