"""Master of a standalone Spark cluster: which applications hold its cores, and whether it still knows this application.

Spark's RPC names the applications, but omits their cores and shows lost workers as alive (fields of `ApplicationInfo`
and `WorkerInfo` are transient). Numbers therefore come from the JSON of the master's page; they explain a shortage of
slots. The module also detects a context that the master has forgotten. A master that restarts without recovery kills
the executors of unknown applications and does not notify their drivers; such a context never gets an executor again.
"""

import socket
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import structlog
from pyspark import SparkContext

ASK_TIMEOUT_S: Final = 5  #: timeout of an RPC or a page
CONNECT_TIMEOUT_S: Final = 2.0
MAX_UNKNOWN_ANSWERS: Final = 3  #: consecutive answers without this application, after which it counts as forgotten

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Holder:
    """Application of the cluster and the cores that it has."""

    name: str
    cores: int


class ApplicationOnPage(msgspec.Struct, frozen=True):
    """A running or waiting application, and the cores that are granted to it."""

    id: str
    name: str
    cores: int


class MasterPage(msgspec.Struct, frozen=True):
    """JSON of the master's page, in Spark's names. `cores`: of workers that are alive."""

    aliveworkers: int
    cores: int
    activeapps: list[ApplicationOnPage]


class StandaloneMaster:
    """Client of a standalone Spark master. Used by a single thread.

    Args:
        url: as in SPARK_MASTER: `spark://HOST:PORT`, or several hosts for high availability.
    """

    def __init__(self, url: str) -> None:
        self._addresses = _addresses(url)
        self._unknown_answers = 0

    @property
    def is_reachable(self) -> bool:
        """Whether a master listens. Blocks for seconds at most."""
        return any(map(is_listening, self._addresses))

    @property
    def has_forgotten_application(self) -> bool:
        """Whether `MAX_UNKNOWN_ANSWERS` consecutive answers of the master lacked this application."""
        return self._unknown_answers >= MAX_UNKNOWN_ANSWERS

    def shortage(self, context: SparkContext) -> str:
        """Why there are too few slots, as text; "" if unknown."""
        state = self._state(context)
        if state is None:
            return "the Spark master does not answer"
        app_id, applications = context.applicationId, {each.id(): each.desc().name() for each in state.activeApps()}
        self._unknown_answers = 0 if app_id in applications else self._unknown_answers + 1
        try:
            page = _read_page(state.host(), _web_port(context, state.host(), state.port()))
        except Exception as error:
            log.debug("the page of the Spark master gave no answer", error=str(error)[:500])
            holders = sorted(name for number, name in applications.items() if number != app_id)
            return f"other applications: {', '.join(holders)}" if holders else ""
        holders = [Holder(each.name, each.cores) for each in page.activeapps if each.id != app_id]
        return describe_cluster(page.cores, page.aliveworkers, holders)

    def _state(self, context: SparkContext) -> Any:
        """State of the leading master, or None."""
        for host, port in self._addresses:
            if not is_listening((host, port)):
                continue
            try:
                state = _master_state(context, host, port)
            except Exception as error:
                log.debug("the Spark master gave no answer", host=host, error=str(error)[:500])
                continue
            if state.status().toString() == "ALIVE":
                return state
        return None


def describe_cluster(cores: int, workers: int, holders: list[Holder]) -> str:
    """Cores of a cluster and their holders, as text."""
    hosts = "1 worker" if workers == 1 else f"{workers} workers"
    has = f"the cluster has {cores} cores on {hosts}"
    holding = sorted((each for each in holders if each.cores), key=lambda each: -each.cores)
    return f"held by {', '.join(f'{each.name} ({each.cores})' for each in holding)}; {has}" if holding else has


def _master_state(context: SparkContext, host: str, port: int) -> Any:
    messages = "org.apache.spark.deploy.DeployMessages"
    return _request(context, (host, port), f"{messages}$RequestMasterState", f"{messages}$MasterStateResponse")


def _web_port(context: SparkContext, host: str, port: int) -> int:
    messages = "org.apache.spark.deploy.master.MasterMessages"
    answer = _request(context, (host, port), f"{messages}$BoundPortsRequest", f"{messages}$BoundPortsResponse")
    return int(answer.webUIPort())


def _request(context: SparkContext, address: tuple[str, int], request: str, response: str) -> Any:
    """Sends the Scala object `request` to the master. Returns its answer, of the class `response`."""
    jvm: Any = context._jvm
    message = jvm.java.lang.Class.forName(f"{request}$").getField("MODULE$").get(None)
    kind = jvm.java.lang.Class.forName(response)
    tag = jvm.java.lang.Class.forName("scala.reflect.ClassTag$").getField("MODULE$").get(None).apply(kind)
    patience = jvm.scala.concurrent.duration.FiniteDuration(ASK_TIMEOUT_S, jvm.java.util.concurrent.TimeUnit.SECONDS)
    rpc = context._jsc.sc().schedulerBackend().rpcEnv()  # SparkEnv needs classes that PySpark's jars lack
    master = rpc.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(*address), "Master")
    return master.askSync(message, jvm.org.apache.spark.rpc.RpcTimeout(patience, "weir.master.ask"), tag)


def _read_page(host: str, port: int) -> MasterPage:
    connection = HTTPConnection(host, port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/json/")
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise OSError(f"http://{host}:{port}/json/ answered {answer.status} {answer.reason}")
        return msgspec.json.decode(answer.read(), type=MasterPage)
    finally:
        connection.close()


def _addresses(url: str) -> list[tuple[str, int]]:
    parts = [urlsplit(f"//{part}") for part in url.removeprefix("spark://").split(",")]
    return [(each.hostname, each.port or 7077) for each in parts if each.hostname]


def is_listening(address: tuple[str, int]) -> bool:
    """Whether a server accepts connections at host and port. Waits for `CONNECT_TIMEOUT_S` per address of the host."""
    try:
        with socket.create_connection(address, timeout=CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
