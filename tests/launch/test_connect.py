"""Real jobs on a real Spark Connect server with two executors, of which any process may be killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.clock import SystemClock
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.bounded_calls import CALL_TIMEOUT_S
from runtime.launch.connect import ConnectLauncher
from stack.services import free_port
from tests.connect_server import ConnectServer, connect_server
from tests.jobs.numbers import Numbers, expected_counts, final_counts
from tests.launch.test_spark import Running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect")) as server:
        yield server


@pytest.fixture
def launcher(server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectLauncher]:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    launcher = ConnectLauncher(server.url)
    yield launcher
    launcher.close()


class Watched(Running):
    @property
    def token(self) -> int:
        return int(self.records.token)

    def begins_to_run(self, after: int = 0) -> int:
        """Waits for a checkpoint of an attempt after the attempt `after`, and returns its token."""
        self.wait_for(lambda: self.token > after and self.checkpoints(self.token) >= 1 and self.slots_shown == 2)
        return self.token

    @property
    def slots_shown(self) -> int:
        return len(self.records.live.get("slots", ()))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_deaths_of_slot_executor_and_server_leave_the_output_exact(
    server: ConnectServer, launcher: ConnectLauncher, tmp_path: Path
) -> None:
    """The job master survives each death, and each number is counted once, also after a restore at three slots."""
    source = Numbers(total=20_000, keys=7, batch=50, splits=6, unbounded=True, slow_until=str(tmp_path / "hurry"))
    job = Watched(launcher, tmp_path, source, 2, attempts=20)
    first = job.begins_to_run()
    os.kill(job.pid(1), signal.SIGKILL)
    second = job.begins_to_run(first)
    next(each for each in psutil.Process(job.pid(1)).parents() if each in server.executors).kill()
    third = job.begins_to_run(second)

    server.kill()
    job.wait_for(lambda: job.records.state is RunState.WAITING)
    job.wait_for(lambda: "does not answer" in job.records.live.get("waiting", {}).get("held_by", ""))
    assert server.url.removeprefix("sc://") in job.records.live["waiting"]["held_by"]
    server.start()
    job.begins_to_run(third)
    job.ask("stop")
    assert job.join() is MasterExitCode.DONE
    assert job.records.state is RunState.STOPPED

    savepoint = [c.folder for c in job.records.completed if c.manifest.kind.ends_job][-1]
    records = MemoryRunStore(token=Token(job.token + 1), restore_from=savepoint)
    records.reserve_ids_above(1_000, job.token)
    restored = Watched(launcher, tmp_path, source, 3, records=records)
    (tmp_path / "hurry").touch()
    restored.wait_for(lambda: final_counts(restored.output) == expected_counts(source))
    assert restored.slots_shown == 3
    restored.ask("drain")
    assert restored.join() is MasterExitCode.DONE
    assert final_counts(restored.output) == expected_counts(source)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_job_masters_share_a_session_and_its_daemons(
    server: ConnectServer, launcher: ConnectLauncher, tmp_path: Path
) -> None:
    """Spark never ends the Python daemon of a session. A session that was closed is replaced by the next one."""

    def run(name: str) -> None:
        other = ConnectLauncher(server.url)
        try:
            source = Numbers(total=500, keys=7, batch=50, splits=2)
            assert Watched(other, tmp_path / name, source, 2).join() is MasterExitCode.DONE
            assert final_counts(tmp_path / name / "out") == expected_counts(source)
        finally:
            other.close()

    for number in range(4):  # each executor gets a slot at last
        run(f"before-{number}")
    assert 1 <= len(server.daemons) <= len(server.executors)
    run("after")
    assert len(server.daemons) <= len(server.executors)
    launcher.warm_up(1)
    assert launcher._session is not None
    launcher._session.spark.stop()  # releases the session on the server
    run("released")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_server_that_does_not_answer_blocks_no_call(server: ConnectServer, launcher: ConnectLauncher) -> None:
    """A call of the client retries for minutes. The job master waits 5 s for the first one, and for no other."""
    launcher.warm_up(1)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        clock = SystemClock()
        began = clock.monotonic_ms()
        for _ in range(20):
            launcher.cancel("no such tag")
        assert clock.monotonic_ms() - began < 2_000 * CALL_TIMEOUT_S
    finally:
        os.kill(server.pid, signal.SIGCONT)
    launcher._connect()
    assert launcher._server_loss() == ""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_server_of_another_release_is_refused(
    server: ConnectServer, launcher: ConnectLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(JobRejected, match=r"SPARK_REMOTE.* has Spark 4\.3\.\d, and slots need 3\.5"):
        launcher.warm_up(1)


def test_a_server_that_is_away_is_named() -> None:
    launcher = ConnectLauncher(f"sc://127.0.0.1:{free_port()}")
    with pytest.raises(EnvironmentFailure, match=r"the Spark Connect server 127\.0\.0\.1:\d+ does not answer"):
        launcher._connect()
    launcher.warm_up(1)  # the run waits for it
    assert launcher.host == "127.0.0.1"


@pytest.mark.parametrize(
    "url", ["spark://head:7077", "sc://", "sc://head", "sc://head:port", "sc://:15002/;token=hidden"]
)
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(JobRejected, match="SPARK_REMOTE must have the form sc://HOST:PORT") as refusal:
        ConnectLauncher(url)
    assert "hidden" not in str(refusal.value)
