"""A topic of Kafka as the target of a `WriteAheadSink`: each epoch is written in a transaction of its own, once.

The transactional id names the sequence of epochs: `<prefix>-<job>-<uid>-epochs-<source>`. A consumer group of the same
name records the last written epoch. The transaction writes the number of the epoch as the offset of the group
(TxnOffsetCommit), so the broker applies rows and number together.

1. An epoch with a number that the group has reached is complete. Nothing is written, and no other producer is fenced.
2. Otherwise the id is initialised. The broker fences every other producer of the id, aborts its open transaction, and
   finishes a commit that is under way (KIP-98). A master of an older attempt can no longer commit.
3. The group is read again: the other producer may have committed before step 2.
4. Rows, offset and commit follow. If the answer to the commit is lost, a repetition starts at step 1.

The slots hold messages, not rows: a row that is no message is refused before its checkpoint.

A transaction is open only while its rows are written. The position in the source therefore never depends on a
transaction that the broker may abort: an aborted one is written again from the files.

Brokers keep offsets for days after their last use (offsets.retention.minutes, 7 days by default). A master that ends
between a commit and its own durable record of the delivery needs the offset, and must restart within that time.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from runtime.connectors.kafka.connection import KafkaConnection
from runtime.connectors.kafka.formats import MessageFormat
from runtime.connectors.kafka.rows import PARTITIONER, MessageProducer, Messages, hold_messages
from runtime.connectors.kafka.transactions import call_again, check_topic_exists, encode_id_part, initialise
from runtime.core.job.graph import Guarantee
from runtime.libraries import import_library
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

    def row_encoder(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        return partial(hold_messages, self.to, self.to.format.encoder(self.to.topic))

    def write_epoch(self, epoch: OutputEpoch, batches: Iterable[pa.RecordBatch]) -> None:
        connection = KafkaConnection(self.to.servers, self.to.options)
        name = f"{self.to.id_prefix}-{encode_id_part(epoch.job)}-{encode_id_part(epoch.sink)}-epochs-{epoch.source}"
        record = EpochRecord(connection, name, self.to.topic)
        try:
            self._write_once(connection, record, epoch.number, batches)
        finally:
            record.close()

    def _write_once(
        self, connection: KafkaConnection, record: "EpochRecord", number: int, batches: Iterable[pa.RecordBatch]
    ) -> None:
        if record.committed_number() >= number:
            return
        record.check_topic_exists()
        producer = connection.producer(
            {
                "transactional.id": record.name,
                "transaction.timeout.ms": self.to.transaction_timeout_ms,
                "partitioner": PARTITIONER,
            }
        )
        what = f"topic {self.to.topic!r}, transaction {record.name}"
        call_again(connection, lambda: initialise(connection, producer), what)
        if record.committed_number() >= number:
            return
        call_again(connection, producer.begin_transaction, what)
        try:
            self._write(connection, producer, batches)
            record.send_number(producer, number)
        except BaseException:
            with contextlib.suppress(*connection.errors):
                producer.abort_transaction(connection.timeout_s)  # consumers would wait for its time-out
            raise
        call_again(connection, lambda: producer.commit_transaction(connection.timeout_s), what)

    def _write(self, connection: KafkaConnection, producer: Any, batches: Iterable[pa.RecordBatch]) -> None:
        messages = MessageProducer(self.to, connection, producer)
        for batch in batches:
            messages.write_held(batch)
        messages.flush()


class EpochRecord:
    """The group `name`, which records the last written epoch, as an offset of partition 0 of the topic.

    A consumer reads it: an admin client that asks during an outage can end the process (`connection`).
    """

    def __init__(self, connection: KafkaConnection, name: str, topic: str) -> None:
        self.name, self._connection, self._topic = name, connection, topic
        self._library = import_library("confluent_kafka", "kafka")
        # Stable offsets would be waited for, until the open transaction has ended.
        options = {"group.id": name, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        self._consumer = connection.consumer(options)

    def committed_number(self) -> int:
        """The number of the last written epoch; 0: none."""
        what = f"commit record {self.name}"
        with self._connection.call(what, self._consumer):
            (partition,) = self._consumer.committed([self._place()], self._connection.timeout_s)
        if partition.error is not None:
            raise self._connection.failure_of(partition.error, what)
        return max(int(partition.offset), 0)

    def send_number(self, producer: Any, number: int) -> None:
        """Adds the number of an epoch to the transaction."""
        group, timeout_s = self._consumer.consumer_group_metadata(), self._connection.timeout_s
        send = partial(producer.send_offsets_to_transaction, [self._place(number)], group, timeout_s)
        call_again(self._connection, send, f"commit record {self.name}")

    def check_topic_exists(self) -> None:
        check_topic_exists(self._connection, self._consumer, self._topic)

    def close(self) -> None:
        self._consumer.close()

    def _place(self, number: int = 0) -> Any:
        return self._library.TopicPartition(self._topic, 0, number)
