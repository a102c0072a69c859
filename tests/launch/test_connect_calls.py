"""The launcher's calls to a Spark Connect server: answers of any kind, and none. The server has no Spark."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.sql.connect.proto import AnalyzePlanResponse, ConfigResponse, InterruptResponse, KeyValue
from pyspark.sql.connect.proto.base_pb2_grpc import (
    SparkConnectServiceServicer,
    add_SparkConnectServiceServicer_to_server,
)

from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.launch import bounded_calls
from runtime.launch.connect import ConnectLauncher, ConnectSession
from runtime.launch.member import arrow_task, member_task
from runtime.launch.slot_pool import SlotPool
from tests.waiting import until


class Service(SparkConnectServiceServicer):
    """Answers the version, and knows no plans. `session`: what the server calls a client's session."""

    def __init__(self) -> None:
        self.version, self.session = "4.3.0", "first"
        self.refusal: grpc.StatusCode | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.credentials: list[str] = []
        self.canceled: list[str] = []
        self.on_cancel = threading.Event()
        self.opened = self.plans = 0

    def AnalyzePlan(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.opened += 1
        self.credentials += [value for name, value in context.invocation_metadata() if name == "authorization"]
        self.answers.wait()
        if self.refusal is not None:
            context.abort(self.refusal, "refused")
        answer = AnalyzePlanResponse(session_id=request.session_id, server_side_session_id=self.session)
        answer.spark_version.version = self.version
        return answer

    def Config(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.answers.wait()
        pairs = [KeyValue(key=key, value="UTC") for key in request.operation.get.keys]
        return ConfigResponse(session_id=request.session_id, server_side_session_id=self.session, pairs=pairs)

    def ExecutePlan(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.plans += 1
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no plans")

    def Interrupt(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.canceled.append(request.operation_tag)
        self.on_cancel.set()
        return InterruptResponse(session_id=request.session_id, server_side_session_id=self.session)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def port(service: Service) -> Iterator[int]:
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads)
        add_SparkConnectServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        port = server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
        server.start()
        yield port
        service.answers.set()
        server.stop(None).wait()


@pytest.fixture
def launcher(port: int) -> Iterator[ConnectLauncher]:
    launcher = ConnectLauncher(f"sc://localhost:{port}", token="swordfish")
    yield launcher
    launcher.close()


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    pool = SlotPool(Token(1), 2, "127.0.0.1", itertools.count())
    yield pool
    pool.dismiss_members()


def begin_to_hang(service: Service, session: ConnectSession) -> None:
    service.answers.clear()
    with pytest.raises(EnvironmentFailure, match="did not answer within"):
        session.call(lambda: session.spark.conf.get("no.such.setting"))


def test_the_token_of_the_environment_reaches_the_server_and_no_error(
    service: Service, launcher: ConnectLauncher
) -> None:
    """The job master removes the variable before it runs an author's code, so PySpark would not see it."""
    service.refusal = grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(EnvironmentFailure, match="opens no session") as failure:
        launcher._connect()
    assert service.credentials == ["Bearer swordfish"]
    assert "swordfish" not in str(failure.value)


def test_vain_connections_leave_no_threads(service: Service, launcher: ConnectLauncher) -> None:
    service.refusal = grpc.StatusCode.UNAUTHENTICATED
    for _ in range(3):
        launcher.warm_up(1)
    assert len(service.credentials) == 3
    until(lambda: "spark calls" not in [each.name for each in threading.enumerate()], 60)


def test_a_session_that_nobody_closes_makes_no_call_at_exit(service: Service, port: int) -> None:
    """PySpark's would retry for minutes if the server is lost."""
    program = f"from runtime.launch.connect import ConnectLauncher as L; L('sc://localhost:{port}/;token=swordfish').warm_up(1)"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert (service.opened, service.plans) == (1, 0)


def test_a_late_answer_condemns_the_session_until_it_comes(
    service: Service, launcher: ConnectLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = launcher._connect()
    monkeypatch.setattr(bounded_calls, "CALL_TIMEOUT_S", 0.2)
    begin_to_hang(service, session)
    calls = len(service.credentials)
    for _ in range(20):
        launcher.cancel("no such tag")
    assert (len(service.credentials), service.canceled) == (calls, []), "no further call waits"
    monkeypatch.undo()
    service.answers.set()
    until(lambda: not session._is_hung, 60)
    assert launcher._connect() is session
    assert launcher._former == []


def test_a_session_without_tasks_is_closed_after_its_replacement(service: Service, launcher: ConnectLauncher) -> None:
    first = launcher._connect()
    first.tasks.add(1)
    service.session = "second"
    second = launcher._connect()
    assert launcher._former == [first]
    first.tasks.clear()
    service.session = "third"
    assert launcher._connect() not in (first, second)
    assert launcher._former == []
    assert first._is_closed
    assert second._is_closed


def test_a_member_of_a_replaced_session_is_replaced(
    service: Service, launcher: ConnectLauncher, pool: SlotPool
) -> None:
    """Another member saw the restart of the server first, and the new session answers: this is no failed attempt."""
    lost = launcher._connect()
    service.session = "second"
    present = launcher._connect()
    errors = []
    for session in (lost, present):
        with pytest.raises((EnvironmentFailure, AssertionError, SparkConnectException)) as error:
            launcher._run_task(session, arrow_task(iter), pool, 0)  # the server knows no plans
        errors.append(error.value)
    assert [launcher.is_replaced(error) for error in errors] == [True, False]
    assert lost.tasks == present.tasks == set()


def test_tasks_of_a_lost_session_are_canceled_in_the_next(
    service: Service, launcher: ConnectLauncher, pool: SlotPool
) -> None:
    """A hung slot would keep its core for minutes."""
    launcher._connect()
    launcher.start_thread(pool, 7, partial(service.on_cancel.wait, 60))  # type: ignore[arg-type]
    service.session = "second"
    launcher.end_members()
    assert service.canceled[:1] == [launcher.tag_of(7)]


def test_a_server_of_another_release_is_refused_with_a_remedy(service: Service, launcher: ConnectLauncher) -> None:
    service.version = "3.5.1"
    with pytest.raises(JobRejected, match=r"SPARK_REMOTE: .* has Spark 3\.5\.1, and slots need 4\.3: name such a"):
        launcher.warm_up(1)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12", "SPARK_REMOTE: the executors need"),
        ("ModuleNotFoundError: No module named 'runtime'", "SPARK_REMOTE: the executors need Python 3"),
        ("EnvironmentFailure: cannot reach the master at '127.0.0.1:40001': [Errno 111]", "set SPARK_LOCAL_IP"),
    ],
)
def test_the_failure_of_a_member_names_a_remedy(launcher: ConnectLauncher, error: str, remedy: str) -> None:
    assert remedy in launcher.describe(RuntimeError(error))
    assert error in launcher.describe(RuntimeError(error))


def test_slots_there_have_the_limits_of_the_job_master_and_those_of_a_cluster_their_own(
    pool: SlotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of a cluster may have narrower limits, which the job master must not widen."""
    roots: list[str] = []

    def note_roots(numbers: Iterable[int]) -> Iterator[int]:
        roots.append(os.environ["WEIR_DATA_ROOTS"])
        return iter(numbers)

    monkeypatch.setenv("WEIR_DATA_ROOTS", "/of/the/master")
    on_server, on_cluster = arrow_task(note_roots), member_task(pool.address, b"no job")
    pool.dismiss_members()
    monkeypatch.setenv("WEIR_DATA_ROOTS", "/of/the/executor")
    with pytest.raises(EnvironmentFailure, match=r"cannot reach the master at '127\.0"):  # it is closed
        list(on_cluster([0]))
    assert os.environ["WEIR_DATA_ROOTS"] == "/of/the/executor"
    list(on_server(iter([pa.record_batch({"id": [0]})])))
    assert roots == ["/of/the/master"]
