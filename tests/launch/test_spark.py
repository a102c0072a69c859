"""Real jobs on a real local Spark: slots are processes, and processes are killed for real."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from runtime.clock import SystemClock
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.spark import SparkLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.launcher import Launcher
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(300)]

PATIENCE_S = 120.0  #: nothing here is about speed; a busy machine may take long


@pytest.fixture(scope="module")
def launcher() -> Iterator[SparkLauncher]:
    launcher = SparkLauncher("tests", "local[12]")  # room for slots that are still being killed
    yield launcher
    launcher.close()


class Running:
    """A job master in a thread, and what may be asked of it."""

    def __init__(self, launcher: Launcher, folder: Path, source: Numbers, parallelism: int, **config: Any) -> None:
        self.records = config.pop("records", None) or MemoryRunStore()
        self.output = folder / "out"
        attempts, trouble = config.pop("attempts", 3), config.pop("trouble", None)
        storage = str(folder / "state")
        master = MasterConfig(
            job_id="1",
            token=self.records.token,
            job=counts(source, self.output, trouble).compile(parallelism),
            storage=storage,
            coordinator=CoordinatorSettings(interval_ms=500, min_pause_ms=50),
            restart=FixedDelay(attempts=attempts, delay_ms=50),
            **config,
        )
        self.master = JobMaster(master, self.records, FileStore(storage), launcher, SystemClock())
        self.exit: MasterExitCode | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.exit = self.master.run()

    def wait_for(self, what: Callable[[], bool]) -> None:
        """As long as the master is there: what it has not done by its end will not come."""

        def is_reached() -> bool:
            if what():
                return True
            assert self._thread.is_alive() or what(), f"the master ended: {self.exit}, {self.records.failure}"
            return False

        until(is_reached, PATIENCE_S, or_else=lambda: f"but {self.records.state}, {self.records.live}")

    def ask(self, kind: str) -> None:
        self.records.operations.append(OperationRequest(kind, kind))
        self.master.poke()

    def join(self) -> MasterExitCode | None:
        self._thread.join(PATIENCE_S)
        return self.exit

    def checkpoints(self, token: int) -> int:
        return sum(c.manifest.token == token for c in self.records.completed)

    def pid(self, slot: int) -> int:
        return next(int(s["pid"]) for s in self.records.live["slots"] if s["index"] == slot)

    def shows(self, restarts: int) -> bool:
        """Whether every slot of the attempt after so many restarts is in the live report."""
        live = self.records.live
        return live.get("restarts") == restarts and len(live["slots"]) == 2

    def everything_read(self, source: Numbers) -> bool:
        """Once the sources are silent, which is cheap to see, the committed output is compared."""
        operators = self.records.live.get("operators", {})
        silent = bool(operators) and operators["numbers"]["rate_out"] == 0
        return silent and final_counts(self.output) == expected_counts(source)


def spark_jobs(launcher: SparkLauncher) -> set[int]:
    """The Spark jobs that run slots now."""
    assert launcher.context is not None
    return set(launcher.context.statusTracker().getActiveJobsIds())


def test_a_killed_slot_leaves_the_output_exact(launcher: SparkLauncher, tmp_path: Path) -> None:
    """S4-42: SIGKILL of a slot between checkpoints restarts all of it."""
    source = Numbers(total=20_000, batch=50, unbounded=True)
    job = Running(launcher, tmp_path, source, 2)
    job.wait_for(lambda: job.checkpoints(1) >= 1 and len(job.records.live.get("slots", ())) == 2)
    os.kill(job.pid(1), signal.SIGKILL)
    job.wait_for(lambda: job.records.token == 2 and job.checkpoints(2) >= 1)
    assert "slot" in job.records.attempts[0][2]
    job.wait_for(lambda: job.everything_read(source))
    job.ask("drain")
    assert job.join() is MasterExitCode.DONE
    assert job.records.state is RunState.FINISHED
    assert final_counts(job.output) == expected_counts(source)


def test_an_exception_replaces_no_process_and_a_kill_replaces_one(launcher: SparkLauncher, tmp_path: Path) -> None:
    """S0-11, S4-42: an operator raises once, then a slot is killed; the output stays exact."""
    trigger, raised, hurry = tmp_path / "raise", tmp_path / "raised", tmp_path / "hurry"

    def trouble(batch: pa.RecordBatch) -> pa.RecordBatch:
        with contextlib.suppress(FileNotFoundError):
            trigger.rename(raised)  # by one slot, once
            raise ValueError("once")
        return batch

    source = Numbers(total=30_000, batch=50, unbounded=True, slow_until=str(hurry))
    job = Running(launcher, tmp_path, source, 2, trouble=trouble)
    job.wait_for(lambda: job.checkpoints(1) >= 1 and job.shows(restarts=0))
    pids, jobs = (job.pid(0), job.pid(1)), spark_jobs(launcher)
    trigger.touch()
    job.wait_for(lambda: job.checkpoints(2) >= 1 and job.shows(restarts=1))
    assert "ValueError: once" in job.records.attempts[0][2]
    assert (job.pid(0), job.pid(1)) == pids
    assert spark_jobs(launcher) == jobs, "the exception cost a Spark job"
    os.kill(job.pid(1), signal.SIGKILL)
    job.wait_for(lambda: job.checkpoints(3) >= 1 and job.shows(restarts=2))
    assert job.pid(0) == pids[0], "the sibling's process stays"
    assert job.pid(1) != pids[1]
    assert len(spark_jobs(launcher) & jobs) == 1
    hurry.touch()
    job.wait_for(lambda: job.everything_read(source))
    job.ask("drain")
    assert job.join() is MasterExitCode.DONE
    assert final_counts(job.output) == expected_counts(source)


def test_a_process_that_stands_by_takes_over_a_killed_slot(launcher: SparkLauncher, tmp_path: Path) -> None:
    hurry = tmp_path / "hurry"
    source = Numbers(total=20_000, batch=50, unbounded=True, slow_until=str(hurry))
    launcher._spares = 1
    try:
        job = Running(launcher, tmp_path, source, 2)
        job.wait_for(lambda: job.checkpoints(1) >= 1 and job.shows(restarts=0) and len(spark_jobs(launcher)) == 3)
        pids, jobs = (job.pid(0), job.pid(1)), spark_jobs(launcher)
        os.kill(job.pid(1), signal.SIGKILL)
        job.wait_for(lambda: job.checkpoints(2) >= 1 and job.shows(restarts=1))
        assert job.pid(0) == pids[0]
        assert job.pid(1) not in pids
        assert len(spark_jobs(launcher) & jobs) == 2, "the slot runs in a process that was there"
        hurry.touch()
        job.wait_for(lambda: job.everything_read(source))
        job.ask("drain")
        assert job.join() is MasterExitCode.DONE
    finally:
        launcher._spares = 0
    assert final_counts(job.output) == expected_counts(source)


def test_a_stopped_slot_is_noticed_by_its_silence_and_harmless_afterwards(
    launcher: SparkLauncher, tmp_path: Path
) -> None:
    """A hung slot is replaced after the heartbeat timeout."""
    source = Numbers(total=5_000, batch=50, unbounded=True)
    job = Running(launcher, tmp_path, source, 2, heartbeat_timeout_ms=3_000)
    job.wait_for(lambda: job.checkpoints(1) >= 1 and len(job.records.live.get("slots", ())) == 2)
    os.kill(job.pid(0), signal.SIGSTOP)
    job.wait_for(lambda: job.records.token == 2 and job.checkpoints(2) >= 1)
    assert "has been silent" in job.records.attempts[0][2]
    job.wait_for(lambda: job.everything_read(source))
    job.ask("drain")
    assert job.join() is MasterExitCode.DONE
    assert final_counts(job.output) == expected_counts(source)


def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("always")


@pytest.mark.parametrize("how", ["stop", "drain", "cancel", "its end", "a failure"])
def test_slots_leave_their_tasks_however_a_run_ends(launcher: SparkLauncher, tmp_path: Path, how: str) -> None:
    """A task that is left behind keeps its core, for which the next slot would wait without a word."""
    bounded, failing = how == "its end", how == "a failure"
    source = Numbers(total=2_000, batch=50, unbounded=not bounded)
    job = Running(launcher, tmp_path, source, 3, trouble=fails if failing else None, attempts=0 if failing else 3)
    if how in ("stop", "drain", "cancel"):
        job.wait_for(lambda: job.checkpoints(1) >= 1)
        job.ask(how)
    assert job.join() is MasterExitCode.DONE
    assert launcher.context is not None
    assert list(launcher.context.statusTracker().getActiveJobsIds()) == []
    assert list(launcher.context.statusTracker().getActiveStageIds()) == []
    pids = {int(slot["pid"]) for slot in job.records.live.get("slots", ())}
    until(lambda: not any(Path("/proc", str(pid)).exists() for pid in pids), PATIENCE_S)


def test_stop_restore_at_another_parallelism_and_drain(launcher: SparkLauncher, tmp_path: Path) -> None:
    """S0-28, S3-19: a stop's savepoint goes on at parallelism 3 with every record counted once."""
    source = Numbers(total=20_000, batch=50, splits=6, unbounded=True)
    first = Running(launcher, tmp_path, source, 2)
    first.wait_for(lambda: first.checkpoints(1) >= 1)
    first.ask("stop")
    assert first.join() is MasterExitCode.DONE
    assert first.records.state is RunState.STOPPED
    assert first.records.settled["stop"][0] is not None
    savepoint = first.records.completed[-1]
    assert savepoint.manifest.finished_operators() == ()
    second = Running(
        launcher, tmp_path, source, 3, records=MemoryRunStore(token=Token(10), restore_from=savepoint.folder)
    )
    second.wait_for(lambda: second.everything_read(source))
    second.ask("drain")
    assert second.join() is MasterExitCode.DONE
    assert second.records.state is RunState.FINISHED
    assert final_counts(second.output) == expected_counts(source)


def test_slots_load_pyspark_from_its_folder(launcher: SparkLauncher) -> None:
    """And not from the archive that Spark puts first in the path of Python, which takes a second longer."""
    loaded = launcher.open_context(1).parallelize([0], 1).map(lambda _: pyspark.__file__).collect()
    assert loaded == [pyspark.__file__]


def test_a_context_that_is_there_already_is_not_taken_over(launcher: SparkLauncher, tmp_path: Path) -> None:
    """It might offer fewer slots than the job needs, which would wait for them without a word."""
    warmed = Running(launcher, tmp_path / "first", Numbers(total=10), 2)
    assert warmed.join() is MasterExitCode.DONE
    second = Running(SparkLauncher("second", "local[2]"), tmp_path / "second", Numbers(total=10), 2, attempts=0)
    second.join()
    assert second.records.failure is not None
    assert "multiple SparkContexts" in str(second.records.failure["message"])


def test_more_slots_than_the_cluster_offers_fails_in_words(tmp_path: Path, launcher: SparkLauncher) -> None:
    source = Numbers(total=10)
    job = Running(launcher, tmp_path, source, 14, attempts=0)
    job.join()
    assert job.records.state is RunState.FAILED
    assert job.records.failure is not None
    assert "slots" in str(job.records.failure["message"])
