"""A real Apache Kafka for tests: one node (KRaft), whose jars come by Maven.

The jars have 43 MB, so they are no dependency of the developer: the first test that needs them fetches them into
`var/kafka`. Where Maven or its repository cannot be had, the test is skipped with the reason.

Found by trial: a new topic is not in the metadata at once, the markers of a transaction follow the answer to its
commit by some milliseconds, and a producer that is not idempotent reorders messages of a new topic.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from runtime.libraries import import_library
from stack.launch.java import find_java
from tests.kafka import Broker, free_port
from tests.kafka_proxy import Proxy, proxy_before
from tests.waiting import until

VERSION: Final = "4.1.0"
ROOT: Final = Path(__file__).parent.parent
#: Parameter of a fixture whose tests run on the small server too.
APACHE: Final = pytest.param("apache", marks=[pytest.mark.slow, pytest.mark.long(seconds=3)])
_ARTIFACTS: Final = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
_READY_S: Final = 120.0
_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENTS:PLAINTEXT,PROXY:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENTS",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.io.threads": "4",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}


class NoBroker(Exception):
    """Apache Kafka cannot be had here; the message is the reason."""


class ApacheBroker(Broker):
    """A listener of Apache Kafka."""

    producer_options: ClassVar[Mapping[str, str]] = {"enable.idempotence": "true"}

    def topic(self, partitions: int = 1, name: str = "") -> str:
        name = super().topic(partitions, name)
        until(lambda: self._has_leaders(name, partitions), 30.0)
        return name

    def delete(self, topic: str) -> None:
        super().delete(topic)
        until(lambda: topic not in self.admin().list_topics(timeout=30).topics, 30.0)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raises the number of partitions to `partitions`."""
        admin = self.admin()  # its requests end with it
        for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(30)
        until(lambda: self._has_leaders(topic, partitions), 30.0)

    def configure(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = self.admin()
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def end(self, topic: str, partition: int = 0, *, stable: bool = True) -> int:
        self._await_markers()
        return super().end(topic, partition, stable=stable)

    def visible_values(self, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[bytes]:
        self._await_markers()
        return super().visible_values(topic, partitions, isolation)

    def settle(self, topic: str, partitions: int) -> None:
        self._await_markers()

    def _has_leaders(self, topic: str, partitions: int) -> bool:
        described = self.admin().list_topics(timeout=30).topics.get(topic)
        return (
            described is not None
            and [part.leader >= 0 and part.error is None for part in described.partitions.values()]
            == [True] * partitions
        )

    def _await_markers(self) -> None:
        """Waits until no transaction that was committed or aborted waits for its markers."""
        until(self._has_markers, 30.0)

    def _has_markers(self) -> bool:
        try:
            transactions = self._requests.list_transactions(state_filters=["PrepareCommit", "PrepareAbort"])
        except import_library("kafka.errors", "kafka").RetriableError:  # the node has just started
            return False
        return not any(transactions.values())

    @cached_property
    def _requests(self) -> Any:
        client = import_library("kafka.admin", "kafka")  # jobs in threads import it too, and its modules have cycles
        return client.KafkaAdminClient(bootstrap_servers=self.servers)


@dataclass
class ApacheKafka:
    """A node with two listeners: `broker` directly, and `proxy` whose clients know the proxy only."""

    java: Path
    libraries: Path
    folder: Path
    broker: ApacheBroker
    proxy: Proxy = field(init=False)
    _child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the node serves clients."""
        with (self.folder / "log").open("ab") as log:
            self._child = subprocess.Popen(self.command("kafka.Kafka"), stdout=log, stderr=log, cwd=self.folder)
        until(self._serves, _READY_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._child is not None:
            self._child.send_signal(number)
            self._child.wait(60)
            self._child = None

    def command(self, main: str, *arguments: str) -> list[str]:
        """Of a program that ends with the process of the test. `arguments` precede the file of settings."""
        prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self.libraries}/*"]
        return [*prefix, str(self.java), *options, main, *arguments, "server.properties"]

    def _serves(self) -> bool:
        assert self._child is not None, "the node is started"
        assert self._child.poll() is None, (self.folder / "log").read_text(errors="replace")[-2_000:]
        with socket.socket() as client:
            return client.connect_ex(self.broker.address) == 0


@contextmanager
def running_apache_kafka(folder: Path, changes: Mapping[str, str] | None = None) -> Iterator[ApacheKafka]:
    """A node that ends with the block. Raises NoBroker.

    Args:
        changes: of the settings of the node.
    """
    java, libraries = _java(), _libraries()
    clients, controller, behind, proxy = (free_port() for _ in range(4))
    listeners = {"CLIENTS": clients, "PROXY": behind, "CONTROLLER": controller}
    settings = {
        **_SETTINGS,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
        "advertised.listeners": f"CLIENTS://127.0.0.1:{clients},PROXY://127.0.0.1:{proxy}",
        "log.dirs": str(folder / "data"),
        **(changes or {}),
    }
    (folder / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    node = ApacheKafka(java, libraries, folder, ApacheBroker(f"127.0.0.1:{clients}"))
    cluster = f"w{urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]}"  # a leading "-" would be an option
    format_command = node.command("kafka.tools.StorageTool", "format", "-t", cluster, "-c")
    subprocess.run(format_command, cwd=folder, check=True, capture_output=True)
    try:
        node.start()
        with proxy_before(("127.0.0.1", behind), ApacheBroker(f"127.0.0.1:{proxy}")) as node.proxy:
            yield node
    finally:
        node.stop(signal.SIGKILL)


def _java() -> Path:
    home = find_java(os.environ)
    if home is None:
        raise NoBroker("Apache Kafka needs Java 17 or newer")
    return Path(home) / "bin" / "java"


def _libraries() -> Path:
    """The folder of the jars. Raises NoBroker if Maven cannot fetch them."""
    home = ROOT / "var" / "kafka"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "install.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # one installation for all workers of pytest-xdist
        jars, complete = home / f"jars-{VERSION}", home / f"jars-{VERSION}.complete"
        if not complete.exists():
            _fetch(home, jars)
            complete.touch()
    return jars


def _fetch(home: Path, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoBroker("the jars of Apache Kafka are fetched by Maven, and there is no mvn: apt-get install maven")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _ARTIFACTS
    )
    (home / "pom.xml").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    try:
        ended = subprocess.run(
            [maven, "-q", "-B", *goal], cwd=home, capture_output=True, text=True, check=False, timeout=600
        )
    except subprocess.TimeoutExpired as error:
        raise NoBroker("Maven does not fetch Apache Kafka within 600 s") from error
    if ended.returncode:
        raise NoBroker(f"Maven cannot fetch Apache Kafka: {ended.stdout.partition('[ERROR] ')[2].partition(' -> ')[0]}")


def broker_of(request: pytest.FixtureRequest) -> Broker:
    """The broker of a fixture with the parameters `small` and `APACHE`."""
    broker: Broker
    if request.param == "apache":
        broker = request.getfixturevalue("apache_kafka").broker
    else:
        broker = request.getfixturevalue("small_broker")
    return broker
