"""Topics of a Kafka-compatible broker."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar, Final

from confluent_kafka import Producer

import weir
from runtime.ports import Sink
from tests.apache_kafka import ApacheBroker
from tests.contracts.sinks.targets.target import Target
from tests.kafka import QUIET, Broker
from tests.kafka_proxy import ADD_OFFSETS_TO_TXN, END_TXN, Proxy, transactional_id
from tests.waiting import until

_OPTIONS: Final = {"socket.timeout.ms": "2000"}
_INVALID_PRODUCER_EPOCH: Final = 47
_CODES: Final = {"full": 56, "read-only": 29, "too small": 10}  #: KAFKA_STORAGE_ERROR, …


class KafkaTopic(Target):
    """A transaction per checkpoint; rows are those of committed transactions by the markers of the log.

    A topic that is deleted under transactions may stay on the broker of the tests (`tests.kafka`), so none is deleted.
    That broker neither ends a transaction by its time-out nor has access rights or a limit of its storage.
    The proxy before it therefore answers as a broker with them does. At a time-out the broker raises the epoch of the
    transactional id and aborts, as it does when another producer initialises the id (KIP-98); `expire` does that.
    """

    servers = ("kafka_broker",)
    obstructions: ClassVar[Mapping[str, str]] = {"full": "s: check disks, load and in-sync replicas of its brokers"}
    refusals: ClassVar[Mapping[str, str]] = {
        "read-only": r"Kafka at \S+: topic '\S+': .*TOPIC_AUTHORIZATION_FAILED.*: check the credentials and the rights",
        "too small": r"Kafka at \S+: topic '\S+', a message of .*MSG_SIZE_TOO_LARGE.*: raise max.message.bytes",
    }
    expiries: ClassVar[Mapping[str, str]] = {
        "open transaction": "",
        "prepared transaction": r"\d+ rows of checkpoint \d+ for topic '\S+' are lost: the broker has aborted .* raise "
        "transaction_timeout_ms",
    }

    def create(self) -> None:
        self._broker.topic(3, self.place.name)

    def sink(self) -> Sink:
        return weir.KafkaSink(
            self._broker.servers,
            self.place.name,
            weir.KafkaJson(),
            key="name",
            id_prefix=self.place.name,
            options=_OPTIONS,
        )

    def settle(self) -> None:
        self._broker.settle(self.place.name, 3)

    def ids(self) -> list[int]:
        return [json.loads(value)["id"] for value in self._broker.committed_values(self.place.name, 3)]

    def leftovers(self) -> list[str]:
        """Open transactions hold back the last stable offset of a partition."""
        ends = [
            [self._broker.end(self.place.name, each, stable=stable) for stable in (True, False)] for each in range(3)
        ]
        return [f"open transaction in partition {number}" for number, (stable, end) in enumerate(ends) if stable < end]

    def delete(self) -> None:
        self._broker.delete(self.place.name)

    def stalled(self) -> AbstractContextManager[None]:
        return self._proxy.stall.closed()

    @contextmanager
    def obstructed(self, name: str) -> Iterator[None]:
        self._proxy.refusal = _CODES[name]
        try:
            yield
        finally:
            self._proxy.refusal = 0

    def expire(self, name: str) -> None:
        """The transaction ends before the request of the sink that would add its last offset, or commit it."""
        request = {"open transaction": ADD_OFFSETS_TO_TXN, "prepared transaction": END_TXN}[name]
        expiry = threading.Event()

        def rule(api: int, body: bytes) -> bytes | None:
            transaction = transactional_id(body) if api == request else ""
            if expiry.is_set() or not transaction.startswith(f"{self.place.name}-"):
                return None
            self._abort(transaction)
            expiry.set()
            return self._answer

        self._proxy.rule = rule
        try:
            until(expiry.is_set)
        finally:
            self._proxy.rule = lambda api, body: None

    def _abort(self, transactional_id: str) -> None:
        producer = Producer({"bootstrap.servers": self._broker.servers, "transactional.id": transactional_id, **QUIET})
        producer.list_topics(timeout=30)
        producer.init_transactions(30)

    @property
    def _answer(self) -> bytes | None:
        """To the request that comes too late."""
        return struct.pack(">ih", 0, _INVALID_PRODUCER_EPOCH)

    @property
    def _proxy(self) -> Proxy:
        proxy: Proxy = self.place.servers[self.servers[0]].controls
        return proxy

    @property
    def _broker(self) -> Broker:
        return self._proxy.broker


class StagedKafkaTopic(KafkaTopic):
    """Rows in files, written to the topic in one transaction after their checkpoint."""

    prepares_there = False
    expiries: ClassVar[Mapping[str, str]] = {"open transaction": "", "prepared transaction": ""}

    def sink(self) -> Sink:
        return weir.KafkaSink(
            self._broker.servers,
            self.place.name,
            weir.KafkaJson(),
            key="name",
            commit="staged",
            id_prefix=self.place.name,
            options=_OPTIONS,
            folder=str(self._folder),
        )

    def leftovers(self) -> list[str]:
        return [*super().leftovers(), *(path.name for path in self._folder.rglob("*.p*"))]

    @property
    def _folder(self) -> Path:
        return self.place.folder / "held"


class ApacheKafkaTopic(KafkaTopic):
    """On Apache Kafka, which answers for itself, apart from a full disk and missing rights."""

    servers = ("apache_kafka_server",)
    is_long = True
    on_deletion = r"Kafka at \S+ .*topic '\S+'.*: create the topic, or correct its name"

    @contextmanager
    def obstructed(self, name: str) -> Iterator[None]:
        if name != "too small":
            with super().obstructed(name):
                yield
            return
        self._apache.configure(self.place.name, "max.message.bytes", "80")
        try:
            yield
        finally:
            self._apache.configure(self.place.name, "max.message.bytes", "1048588")

    @property
    def _answer(self) -> bytes | None:
        return None

    @property
    def _apache(self) -> ApacheBroker:
        assert isinstance(self._broker, ApacheBroker), "the fixture is Apache Kafka"
        return self._broker


class StagedApacheKafkaTopic(ApacheKafkaTopic, StagedKafkaTopic):
    """As `StagedKafkaTopic`, on Apache Kafka."""
