"""Real jobs on a real Spark Connect server with two executors, of which any process may be killed."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.connect import ConnectLauncher, ConnectSession
from stack.services import free_port
from tests.connect_server import ConnectServer, connect_server
from tests.jobs.numbers import Numbers, expected_counts, final_counts
from tests.launch.test_spark import Running
from tests.waiting import until


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
    restored.wait_for(lambda: restored.slots_shown == 3)
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
    until(lambda: _answers(launcher), 240)
    assert launcher._session is not None
    launcher._session.spark.stop()  # releases the session on the server
    run("released")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_server_that_does_not_answer_blocks_no_call(server: ConnectServer, launcher: ConnectLauncher) -> None:
    """A call of the client retries for minutes. The job master waits for the first one, and for no other."""
    until(lambda: _answers(launcher), 240)
    session, calls = launcher._session, list[int]()
    assert session is not None
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        until(lambda: _hangs(launcher, session), 240)  # its threads stop one by one
        for _ in range(20):
            with pytest.raises(EnvironmentFailure, match="did not answer"):
                session.call(partial(calls.append, 1))
        assert calls == []
    finally:
        os.kill(server.pid, signal.SIGCONT)
    until(lambda: _answers(launcher), 240)


def _hangs(launcher: ConnectLauncher, session: ConnectSession) -> bool:
    launcher.cancel("no such tag")
    return session._is_hung


def _answers(launcher: ConnectLauncher) -> bool:
    """Whether the server has answered in time, which depends on the load of this machine."""
    launcher.warm_up(1)
    return launcher._session is not None and launcher._server_loss() == ""


def test_a_server_that_is_away_is_named() -> None:
    launcher = ConnectLauncher(f"sc://127.0.0.1:{free_port()}")
    with pytest.raises(EnvironmentFailure, match=r"the Spark Connect server 127\.0\.0\.1:\d+ does not answer"):
        launcher._connect()
    launcher.warm_up(1)  # the run waits for it
    assert launcher.host == "127.0.0.1"


@pytest.mark.parametrize("url", ["spark://head:7077", "sc://", "sc://head", "sc://head:port", "sc://:1/;token=hidden"])
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(JobRejected, match="SPARK_REMOTE must have the form sc://HOST:PORT") as refusal:
        ConnectLauncher(url)
    assert "hidden" not in str(refusal.value)


@pytest.mark.parametrize(
    "parameters",
    [
        *("/;token=hidden==", "/;token", "/hidden;use_ssl=true", "/;session_id=hidden", "/;Token=hidden"),
        *("/;grpc_keepalive_time_ms=hidden", "/;grpc_keepalive_timeout_ms=hidden", f"/;user_agent={'hidden' * 400}"),
    ],
)
def test_parameters_of_another_form_are_refused_and_not_quoted(parameters: str) -> None:
    """PySpark's errors quote them, and reach the page of the run."""
    with pytest.raises(JobRejected, match=r"SPARK_REMOTE must have the form .* %3D") as refusal:
        ConnectLauncher(f"sc://head:15002{parameters}")
    assert "hidden" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


def test_parameters_of_the_client_are_accepted() -> None:
    ConnectLauncher("sc://head:15002/;use_ssl=true;token=a%3D%3D;user_id=weir;x-cluster-id=7")


def test_a_session_cannot_be_chosen() -> None:
    """The server closes a session after an hour without use, and the launcher could open no other."""
    with pytest.raises(JobRejected, match="SPARK_REMOTE must not have session_id"):
        ConnectLauncher(f"sc://head:15002/;session_id={uuid.uuid4()}")


def test_the_client_is_an_extra_that_a_run_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not in the demo."""
    monkeypatch.setattr("runtime.libraries.find_spec", lambda name: None if name == "grpc" else ModuleType(name))
    with pytest.raises(JobRejected) as refusal:
        ConnectLauncher("sc://head:15002")
    advice = "needs the library grpc: on every host, run pip install 'weir-streams[connect]'"
    assert str(refusal.value) == f"connect: {advice}"
