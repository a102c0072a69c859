"""A topic of Kafka as the target of a `WriteAheadSink`: each epoch is written in a transaction of its own, once.

The transactional id names the sequence of epochs: `<prefix>-<job>-<uid>-epochs-<source>`. A consumer group of the same
name records the last written epoch. The transaction writes the number of the epoch as the offset of the group
(TxnOffsetCommit), so the broker applies rows and number together.

1. An epoch with a number that the group has reached is complete. Nothing is written, and no other producer is fenced.
2. Otherwise the id is initialised. The broker fences every other producer of the id, aborts its open transaction, and
   finishes a commit that is under way (KIP-98). A master of an older attempt can no longer commit.
3. The group is read again: the other producer may have committed before step 2.
4. Rows, offset and commit follow. If the answer to the commit is lost, a repetition starts at step 1.

A transaction is open only while its rows are written. The position in the source therefore never depends on a
transaction that the broker may abort: an aborted one is written again from the files.

Brokers keep offsets for days after their last use (offsets.retention.minutes, 7 days by default). A master that ends
between a commit and its own durable record of the delivery needs the offset, and must restart within that time.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from runtime.connectors.kafka.connection import KafkaConnection
from runtime.connectors.kafka.formats import MessageFormat
from runtime.connectors.kafka.rows import PARTITIONER, Messages, RowProducer
from runtime.connectors.kafka.transactions import CommitRecord, call_again, encode_id_part, initialise
from runtime.connectors.libraries import import_library
from runtime.core.job.graph import Guarantee
from runtime.ports import OutputEpoch


class Topic(Messages, Protocol):
    """The settings of `KafkaSink` that describe how its topic is written."""

    @property
    def servers(self) -> str: ...
    @property
    def format(self) -> MessageFormat: ...
    @property
    def transaction_timeout_ms(self) -> int: ...
    @property
    def id_prefix(self) -> str: ...
    @property
    def options(self) -> Mapping[str, str]: ...
    def check_settings(self) -> None: ...


@dataclass(frozen=True)
class KafkaEpochs:
    """Writes epochs to a topic."""

    to: Topic

    @property
    def guarantee(self) -> str:
        return Guarantee.EXACTLY_ONCE.value

    def check(self) -> None:
        self.to.check_settings()

    def write_epoch(self, epoch: OutputEpoch, batches: Iterable[pa.RecordBatch]) -> None:
        connection = KafkaConnection(self.to.servers, self.to.options)
        record = CommitRecord(connection)
        name = f"{self.to.id_prefix}-{encode_id_part(epoch.job)}-{encode_id_part(epoch.sink)}-epochs-{epoch.source}"
        if record.committed_number(name, self.to.topic) >= epoch.number:
            return
        record.check_topic_exists(self.to.topic)
        producer = connection.producer(
            {
                "transactional.id": name,
                "transaction.timeout.ms": self.to.transaction_timeout_ms,
                "partitioner": PARTITIONER,
            }
        )
        what = f"topic {self.to.topic!r}, transaction {name}"
        call_again(connection, lambda: initialise(connection, producer), what)
        if record.committed_number(name, self.to.topic) >= epoch.number:
            return
        call_again(connection, producer.begin_transaction, what)
        try:
            self._write(connection, producer, batches)
            self._send_number(connection, producer, name, epoch.number)
        except BaseException:
            with contextlib.suppress(import_library("confluent_kafka", "kafka").KafkaException):
                producer.abort_transaction(connection.timeout_s)  # consumers would wait for its time-out
            raise
        call_again(connection, lambda: producer.commit_transaction(connection.timeout_s), what)

    def _write(self, connection: KafkaConnection, producer: Any, batches: Iterable[pa.RecordBatch]) -> None:
        rows = RowProducer(self.to, self.to.format.encoder(self.to.topic), connection, producer)
        for batch in batches:
            rows.write(batch)
        rows.flush()

    def _send_number(self, connection: KafkaConnection, producer: Any, name: str, number: int) -> None:
        """Adds the number of the epoch to the transaction, as an offset of the group `name`."""
        place = import_library("confluent_kafka", "kafka").TopicPartition(self.to.topic, 0, number)
        consumer = connection.consumer({"group.id": name, "enable.auto.commit": False})
        try:
            group, timeout_s = consumer.consumer_group_metadata(), connection.timeout_s
            send = partial(producer.send_offsets_to_transaction, [place], group, timeout_s)
            call_again(connection, send, f"commit record {name}")
        finally:
            consumer.close()
