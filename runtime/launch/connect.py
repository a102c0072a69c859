"""Slots on a Spark Connect server (`SPARK_REMOTE=sc://HOST:PORT`): the job master needs no JVM.

The application exists before the run. Its memory, its cores and the retries of its tasks are therefore the server's,
and a version may choose no settings. The executors need the Python of this process, with Weir and the pipelines.

All job masters of a user share one session of the server, and those of a package another. Spark starts a Python daemon
for each session on every executor, and ends it with the executor only (270 MB each). A session that the server has
closed cannot be opened again, so the next number follows.
"""

import atexit
import os
import platform
import queue
import re
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyspark
import structlog
from pyspark import cloudpickle

from runtime.access.job_package import active_package
from runtime.access.spark_settings import REMOTE_VARIABLE
from runtime.dataflow.plan import CompiledJob
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.launch.bounded_calls import CALL_TIMEOUT_S, BoundedCalls
from runtime.launch.member import ArrowTask, arrow_task, local_address, member_task
from runtime.launch.slot_pool import POLL_INTERVAL_S, SlotPool, StartMember
from runtime.launch.spark_tasks import SparkTaskLauncher, summarize_error
from runtime.launch.standalone_cluster import is_listening
from runtime.libraries import require_libraries
from runtime.master.launcher import SlotPhase

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

#: Libraries that PySpark's client imports -> the extra that installs them.
_LIBRARIES: Final = dict.fromkeys(("grpc", "grpc_status", "zstandard"), "connect")
_FORM: Final = "sc://HOST:PORT, with parameters such as ;use_ssl=true behind a slash, and = in a value as %3D"
_HEADER: Final = re.compile(r"[0-9a-z_.-]+")  #: name of a parameter that the client sends as a header
_SESSIONS: Final = uuid.UUID("5b1f6f0e-6c1c-4a0e-9a53-2f0b6f3f5d0a")  #: namespace of the ids of sessions
#: Of Spark: the executors run another Python, or it lacks a module.
_PYTHON_MARKS: Final = ("PYTHON_VERSION_MISMATCH", "ModuleNotFoundError")
_LOOPBACK_MARK: Final = re.compile(r"cannot reach the master at '(?:127\.|localhost)")  #: of a member
_CLOSED_MARK: Final = "INVALID_HANDLE.SESSION_CLOSED"  #: of Spark: the id had a session, which has ended
_MAX_SESSIONS: Final = 1_000  #: closed sessions that a server remembers (spark.connect.session.manager)
#: A member's call waits for its task as long as the run. It survives a server or network that is away for minutes.
_MAX_RETRIES: Final = 600
_MAX_BACKOFF_MS: Final = 1_000

T = TypeVar("T")
log = structlog.get_logger()


class _SessionLost(EnvironmentFailure):
    """The session of a member was lost, and its task with it."""


class ConnectSession:
    """A client of the shared session. Thread-safe."""

    def __init__(self, session: "SparkSession") -> None:
        self.spark = session
        atexit.unregister(session.client._on_exit)  # it would call a server that may be lost, for minutes
        self.tasks: set[int] = set()  #: the members whose calls it makes
        self._calls = BoundedCalls()
        self._is_hung = self._is_closed = False

    def call(self, function: Callable[[], T]) -> T:
        """Returns the result of `function`, which calls the server.

        Raises:
            EnvironmentFailure: the call took more than `CALL_TIMEOUT_S`, an earlier one still does, or the session is
                closed.
            Exception: as raised by `function`.
        """
        if self._is_closed:
            raise EnvironmentFailure("its connection is closed")
        if not self._is_hung:
            try:
                return self._calls.call(function)
            except queue.Empty:
                self._is_hung = True
                self._calls.submit(self._on_answer)
        raise EnvironmentFailure(f"it did not answer within {CALL_TIMEOUT_S:.0f} s")

    def close(self) -> None:
        """Closes the connection, which ends all calls. The session stays, for other job masters."""
        client, calls = self.spark.client, BoundedCalls()  # the thread of this session may be in a call
        try:
            calls.call(client.close)
        except Exception as error:
            log.warning("the connection to the Spark Connect server did not close", error=summarize_error(error))
        calls.close()
        self._is_closed = True
        self._calls.close()

    def _on_answer(self) -> None:
        self._is_hung = False  # the late call has ended


class ConnectLauncher(SparkTaskLauncher):
    """Implements `launcher.Launcher` with a Spark job per slot in a session of a Spark Connect server.

    Args:
        url: as in SPARK_REMOTE.
        token: as in SPARK_CONNECT_AUTHENTICATE_TOKEN; "": none, or that of the URL.

    Raises:
        JobRejected: the URL has another form, or a library is not installed.
    """

    def __init__(self, url: str, spares: int = 0, token: str = "") -> None:
        super().__init__(spares=spares)
        require_libraries(_LIBRARIES)
        self._url, self._address, self._token = url, _address_of(url), token
        self._name = f"the Spark Connect server {self._address[0]}:{self._address[1]}"
        self._session: ConnectSession | None = None  #: None until it is opened
        self._former: list[ConnectSession] = []  #: their calls may go on
        self._connecting = threading.Lock()
        self._begun: set[str] = set()  #: operations of this process whose task runs

    @property
    def loss(self) -> str:
        return ""  # a new session replaces a lost one

    @property
    def spans_hosts(self) -> bool:
        return True

    @property
    def host(self) -> str:
        try:
            return os.environ.get("SPARK_LOCAL_IP") or local_address(self._address[0])
        except OSError as error:  # a name server's outage is temporary
            raise EnvironmentFailure(f"{REMOTE_VARIABLE}: no route to {self._name}: {error}") from error

    def warm_up(self, slots: int) -> None:
        try:
            self._connect()
        except EnvironmentFailure as error:  # the run waits for the server
            log.warning("no session on the Spark Connect server yet", error=str(error))

    def close(self) -> None:
        for session in [*self._former, *([self._session] if self._session else [])]:
            session.close()

    def open(self, pool: SlotPool, job: CompiledJob) -> StartMember:
        pickled = cloudpickle.dumps(job)  # type: ignore[no-untyped-call]
        task = arrow_task(member_task(pool.address, pickled, active_package()))

        def start(number: int) -> None:
            session = self._connect_when_reachable(pool)
            self.start_thread(pool, number, partial(self._run_task, session, task, pool, number))

        return start

    def _run_task(self, session: ConnectSession, task: ArrowTask, pool: SlotPool, number: int) -> None:
        spark = session.spark
        session.tasks.add(number)
        try:
            spark.addTag(self.tag_of(number))  # of this thread
            if not pool.is_dismissed:
                spark.range(number, number + 1, 1, 1).mapInArrow(task, "id long").collect()
        except Exception as error:
            if session is not self._session or self._server_loss():  # another member may have replaced it already
                raise _SessionLost(summarize_error(error)) from error
            raise
        finally:
            session.tasks.discard(number)

    def is_replaced(self, error: Exception) -> bool:
        return isinstance(error, _SessionLost) or super().is_replaced(error)

    def describe(self, error: Exception) -> str:
        text = summarize_error(error)
        if any(mark in str(error) for mark in _PYTHON_MARKS):
            here = ".".join(platform.python_version_tuple()[:2])
            return f"{REMOTE_VARIABLE}: the executors need Python {here}, Weir and the pipelines, as here: {text}"
        if _LOOPBACK_MARK.search(str(error)):
            return f"executors on other hosts do not reach a loopback address: set SPARK_LOCAL_IP: {text}"
        return text

    def cancel(self, tag: str) -> None:
        session = self._session
        if session is None:
            return
        try:
            session.call(partial(session.spark.interruptTag, tag))
        except Exception as error:  # the task ends with its server, or when its member has lost the master
            log.error("a Spark job is not canceled", tag=tag, error=summarize_error(error))

    def end_members(self) -> None:
        try:
            self._connect()  # tasks of a former session have the same tags in this one
        except Exception as error:
            log.warning("tasks of slots are not canceled", error=str(error))
            self.close()  # the calls end
        super().end_members()

    def report(self, pool: SlotPool) -> None:
        status = pool.status
        begun = max(len(self._begun), status.connected)  # an idle server reports the begin of a task within 2 s
        try:
            self._connect()
        except Exception as error:
            pool.on_status(SlotPhase.WAITING, status.connected, str(error))
            return
        if begun < status.wanted:
            pool.on_status(SlotPhase.WAITING, begun, f"{self._name} has not begun the other tasks")
        else:
            pool.on_status(SlotPhase.STARTING, begun)

    def _connect_when_reachable(self, pool: SlotPool) -> ConnectSession:
        while True:
            try:
                return self._connect()
            except EnvironmentFailure as error:
                pool.on_status(SlotPhase.WAITING, 0, str(error))
            threading.Event().wait(POLL_INTERVAL_S)
            if pool.is_dismissed:
                raise EnvironmentFailure("no slots are needed any more")

    def _connect(self) -> ConnectSession:
        """The session, or another if it has been lost.

        Raises:
            EnvironmentFailure: the server does not answer, or opens no session.
            JobRejected: the server has another version of Spark.
        """
        with self._connecting:
            if self._session is None or self._server_loss():
                session = self._open_session()
                former = [*self._former, *([self._session] if self._session else [])]
                self._session, self._former = session, [each for each in former if each.tasks]
                for each in former:
                    if not each.tasks:
                        each.close()
                self._begun.clear()
            return self._session

    def _server_loss(self) -> str:
        """Why the session is of no use; "" while its server answers. Waits for `CALL_TIMEOUT_S` and a connection."""
        session = self._session
        if not is_listening(self._address):
            return f"{self._name} does not answer"
        if session is None:
            return ""
        try:
            session.call(lambda: session.spark.conf.get("spark.sql.session.timeZone"))  # the version is cached
        except Exception as error:
            return f"{self._name} does not answer: {summarize_error(error)}"
        return ""

    def _open_session(self) -> ConnectSession:
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        if not is_listening(self._address):
            raise EnvironmentFailure(f"{self._name} does not answer")
        for number in range(_MAX_SESSIONS):
            builder = DefaultChannelBuilder(self._url)
            builder.set(DefaultChannelBuilder.PARAM_SESSION_ID, _session_id(number))
            if self._token:
                builder.set(DefaultChannelBuilder.PARAM_TOKEN, self._token)
            session = ConnectSession(SparkSession.builder.channelBuilder(builder).create())
            session.spark.client.set_retry_policies([DefaultPolicy(_MAX_RETRIES, max_backoff=_MAX_BACKOFF_MS)])
            try:
                version = session.call(lambda spark=session.spark: spark.version)  # type: ignore[misc]
            except Exception as error:
                session.close()
                if _CLOSED_MARK in str(error):
                    continue
                raise EnvironmentFailure(f"{self._name} opens no session: {summarize_error(error)}") from error
            if problem := _version_problem(version, pyspark.__version__):
                session.close()
                raise JobRejected("bad-environment", REMOTE_VARIABLE, f"{self._name} {problem}")
            session.spark.registerProgressHandler(self._on_progress)  # type: ignore[arg-type]  # a function too
            return session
        raise EnvironmentFailure(f"{self._name} opens no session: it has closed {_MAX_SESSIONS}")

    def _on_progress(self, *, inflight_tasks: int, operation_id: str, done: bool, **_: Any) -> None:
        """Called by the threads of members, every two seconds."""
        if done:
            self._begun.discard(operation_id)
        elif inflight_tasks:
            self._begun.add(operation_id)


def _session_id(number: int) -> str:
    """The id of a session. Each package has sessions of its own: their Python processes may run a further task."""
    package = active_package()
    return str(uuid.uuid5(_SESSIONS, str(number) if package is None else f"{package.digest} {number}"))


def _address_of(url: str) -> tuple[str, int]:
    """Host and port. An error does not quote the URL, whose parameters may have a token."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        builder = DefaultChannelBuilder(url)
        host, port, session_id = builder.url.hostname, builder.url.port, builder.session_id
        _ = builder.keepalive_time_ms, builder.keepalive_timeout_ms, builder.userAgent  # read by each connection
        is_valid = all(_HEADER.fullmatch(name) for name, _ in builder.metadata())
    except Exception:  # of several kinds; most of them quote a parameter
        host = port = session_id = None
        is_valid = False
    if not (is_valid and host and port):
        raise JobRejected("bad-environment", REMOTE_VARIABLE, f"{REMOTE_VARIABLE} must have the form {_FORM}")
    if session_id is not None:  # nothing could replace it after its end
        raise JobRejected("bad-environment", REMOTE_VARIABLE, f"{REMOTE_VARIABLE} must not have session_id")
    return host, port


def _version_problem(server: str, client: str) -> str:
    """Why slots of PySpark `client` cannot run on Spark `server`; "" if they can.

    Between minor versions Spark may change how it calls Python.
    """
    is_equal = server.split(".")[:2] == client.split(".")[:2]
    need = ".".join(client.split(".")[:2])
    return "" if is_equal else f"has Spark {server}, and slots need {need}: name such a server, or none"
