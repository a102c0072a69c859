"""A topic of Kafka as a sink: a transaction per checkpoint, rows staged in files, or a producer without transactions.

With `commit="transaction"` the rows of a checkpoint are a transaction of their subtask. Consumers that read committed
messages see it when the checkpoint has completed. While it is pending, such consumers of the same partitions wait, also
for messages of others: this is the price of a transaction, in Flink too. `transactions` describes ids and commits.

With `commit="staged"` the rows lie in files until their checkpoint has completed. The job master then writes them in a
short transaction (`epochs`).
"""

import contextlib
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from runtime.clock import Deadline
from runtime.connectors.kafka.connection import (
    SASL_MECHANISMS,
    KafkaConnection,
    check_connection,
    check_topics,
    sasl_mechanism,
)
from runtime.connectors.kafka.epochs import KafkaEpochs
from runtime.connectors.kafka.formats import MessageFormat
from runtime.connectors.kafka.rows import PARTITIONER, RowProducer
from runtime.connectors.kafka.transactions import (
    KafkaCommitRecord,
    KafkaCommitter,
    PreparedTransaction,
    call_again,
    check_topic_exists,
    initialise,
    new_writer_name,
)
from runtime.connectors.sinks.no_committer import NoCommitter
from runtime.connectors.sinks.write_ahead import WriteAheadSink
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.libraries import import_library
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter, StageFolders

DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000  #: the largest that brokers accept by default
_MIN_TRANSACTION_TIMEOUT_MS: Final = 10_000
_STATISTICS_INTERVAL_MS: Final = 50
_IDENTITY_POLLS: Final = 200
_ANSWER_POLL_S: Final = 0.1


@dataclass(frozen=True)
class KafkaSink:
    """Writes a message per row.

    Args:
        servers: bootstrap servers, `host:port` separated by commas.
        topic: the topic; it must exist.
        format: format of the values, from all columns of a row.
        key: column with the keys of the messages: bytes as they are, other values as text. None: no keys, and the
            messages are spread over the partitions.
        commit: "transaction": exactly once for consumers that read committed messages. "immediate": at least once,
            without delay; a message is written when its row arrives. "staged": exactly once as well, by a single
            short transaction after each checkpoint; no rows are lost in a long outage.
        transaction_timeout_ms: the broker aborts a transaction that is older. With "transaction" its rows are then
            lost, so the time must exceed the checkpoint interval and the longest outage together. With "staged" it
            must exceed the time to write the rows of a checkpoint. Brokers limit it by `transaction.max.timeout.ms`.
        id_prefix: beginning of the transactional ids and of the consumer groups that record commits; access rights go
            by it. Installations of Weir that share a cluster need different ones: each aborts leftovers of its jobs.
        options: further options of librdkafka, such as `sasl.password`; a secret is written `${secret:NAME}`.
        folder: with "staged", holds the rows of a checkpoint, on a file system that every host mounts. A job that the
            console starts has its own folder for this, and the argument may be left out.
    """

    servers: str
    topic: str
    format: MessageFormat
    key: str | None = None
    commit: Literal["transaction", "immediate", "staged"] = "transaction"
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    id_prefix: str = "weir"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str = ""

    @property
    def guarantee(self) -> str:
        return "at-least-once" if self.is_immediate else "exactly-once"

    @property
    def is_immediate(self) -> bool:
        return self.commit == "immediate"

    @property
    def has_independent_writers(self) -> bool:
        """An open transaction of a lost writer holds back readers until a clean-up aborts it."""
        return self.is_immediate

    @property
    def output_expires_ms(self) -> int | None:
        return self.transaction_timeout_ms if self.commit == "transaction" else None

    def bind(self, uid: str, folders: StageFolders) -> "KafkaSink | WriteAheadSink":
        return self._write_ahead().bind(uid, folders) if self.commit == "staged" else self

    def folders(self) -> Mapping[str, str]:
        return self._write_ahead().folders() if self.commit == "staged" else {}

    def writer(self) -> SinkWriter:
        match self.commit:
            case "transaction":
                return TransactionWriter(self)
            case "immediate":
                return ImmediateWriter(self)
            case "staged":
                return self._write_ahead().writer()

    def committer(self) -> SinkCommitter:
        match self.commit:
            case "transaction":
                return KafkaCommitter(self.servers, self.options, self.id_prefix)
            case "immediate":
                return NoCommitter()
            case "staged":
                return self._write_ahead().committer()

    def _write_ahead(self) -> WriteAheadSink:
        return WriteAheadSink(KafkaEpochs(self), self.folder)

    def check(self) -> None:
        self.check_settings()
        if self.commit == "staged":
            self._write_ahead().check()

    def check_settings(self) -> None:
        """As `check`, apart from the folder."""
        check_connection(self.servers, self.options)
        check_topics("topic", [self.topic])
        self.format.check()
        if self.commit not in ("transaction", "immediate", "staged"):
            raise JobRejected("bad-commit", "commit", f"must be transaction, staged or immediate, not {self.commit!r}")
        if self.folder and self.commit != "staged":
            raise JobRejected("bad-folder", "folder", "is used with commit='staged' only")
        if not re.fullmatch(r"[A-Za-z0-9_.]{1,64}", self.id_prefix):
            raise JobRejected(
                "bad-prefix", "id_prefix", f"must be letters, digits, '_' and '.', not {self.id_prefix!r}"
            )
        if self.transaction_timeout_ms < _MIN_TRANSACTION_TIMEOUT_MS:
            least = f"must be at least {_MIN_TRANSACTION_TIMEOUT_MS} ms: a checkpoint and an outage must fit into it"
            raise JobRejected("bad-timeout", "transaction_timeout_ms", least)
        if self.commit == "transaction" and self.options.get("security.protocol", "").lower().startswith("sasl"):
            mechanism = sasl_mechanism(self.options)
            if mechanism not in SASL_MECHANISMS:
                mechanisms = ", ".join(SASL_MECHANISMS)
                advice = f"transactions log in by {mechanisms}, not {mechanism}: choose one, or commit='staged'"
                raise JobRejected("bad-mechanism", "options.sasl.mechanism", advice)


class ImmediateWriter(SinkWriter):
    """Produces rows at once. A checkpoint waits until they are acknowledged, so no row is lost."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._rows: RowProducer | None = None

    def open(self, context: OperatorContext) -> None:
        connection = KafkaConnection(self._sink.servers, self._sink.options)
        producer = connection.producer({"enable.idempotence": True, "partitioner": PARTITIONER})
        check_topic_exists(connection, producer, self._sink.topic)
        self._rows = RowProducer(self._sink, self._sink.format.encoder(self._sink.topic), connection, producer)

    def write(self, batch: pa.RecordBatch) -> None:
        assert self._rows is not None, "the writer is open"
        self._rows.write(batch)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        assert self._rows is not None, "the writer is open"
        self._rows.flush()
        return ()

    def close(self) -> None:
        self._rows = None


@dataclass(slots=True)
class _Id:
    """A transactional id of the pool. `number`: of its last prepared transaction."""

    name: str
    metadata: Any  #: of the consumer group that records its commits
    number: int = 0


@dataclass(slots=True)
class _Producer:
    """An initialised producer, whose next transaction is the only one of its epoch."""

    id: _Id
    rows: RowProducer
    producer_id: int
    epoch: int


class TransactionWriter(SinkWriter):
    """Writes the rows of each checkpoint in a transaction of its own.

    To initialise a producer takes tens of milliseconds. A thread does it ahead, while rows are written.
    """

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._thread = ThreadPoolExecutor(1, "kafka-transaction")
        self._pool: list[_Id] = []
        self._next: Future[_Producer] | None = None
        self._current: _Producer | None = None
        self._row_count = 0

    def open(self, context: OperatorContext) -> None:
        self._prefix = new_writer_name(self._sink.id_prefix, context.job, context.uid, context.token, context.index)
        self._connection = KafkaConnection(self._sink.servers, self._sink.options)
        self._library = import_library("confluent_kafka", "kafka")
        self._record = KafkaCommitRecord(self._connection)
        self._record.check_topic_exists(self._sink.topic)
        self._encode = self._sink.format.encoder(self._sink.topic)
        self._next = self._thread.submit(self._open_producer)
        self._next.result()  # a problem is reported before the first row

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._current is None:
            assert self._next is not None, "the writer is open"
            self._current = self._next.result()
            self._call(self._current.rows.producer.begin_transaction)
        self._current.rows.write(batch)
        self._row_count += batch.num_rows

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if self._current is None:
            return ()
        current, rows = self._current, self._row_count
        current.rows.flush()
        number = current.id.number + 1
        place = self._library.TopicPartition(self._sink.topic, 0, number)
        producer = current.rows.producer
        timeout = self._connection.timeout_s
        self._call(lambda: producer.send_offsets_to_transaction([place], current.id.metadata, timeout))
        current.id.number = number
        topic = self._sink.topic
        prepared = PreparedTransaction(
            current.id.name, number, current.producer_id, current.epoch, topic, rows, checkpoint
        )
        # The producer is dropped, not closed: `close` would abort the transaction.
        self._current, self._row_count = None, 0
        self._next = self._thread.submit(self._open_producer)
        return (prepared.committable(),)

    def close(self) -> None:
        """Aborts the transaction in progress, so that no consumer waits for it. Prepared transactions stay."""
        self._thread.shutdown(cancel_futures=True)
        if self._current is not None:
            with contextlib.suppress(*self._connection.errors):  # the next attempt aborts it otherwise
                self._current.rows.producer.abort_transaction(self._connection.timeout_s)
        self._current = self._next = None

    def _open_producer(self) -> _Producer:
        """An initialised producer of a free id. Runs on the thread of the writer.

        librdkafka shows producer id and epoch in its statistics only. They last as long as the producer: only an abort
        could raise the epoch.
        """
        free = self._free_id()
        identity: dict[str, int] = {}

        def on_statistics(text: str) -> None:
            statistics = msgspec.json.decode(text)["eos"]
            if statistics["producer_id"] >= 0:
                identity.update(producer_id=statistics["producer_id"], epoch=statistics["producer_epoch"])

        producer = self._connection.producer(
            {
                "transactional.id": free.name,
                "transaction.timeout.ms": self._sink.transaction_timeout_ms,
                "partitioner": PARTITIONER,
                "statistics.interval.ms": _STATISTICS_INTERVAL_MS,
                "stats_cb": on_statistics,
            }
        )
        self._call(lambda: initialise(self._connection, producer))
        for _ in range(_IDENTITY_POLLS):
            if identity:
                return _Producer(free, RowProducer(self._sink, self._encode, self._connection, producer), **identity)
            self._call(lambda: producer.poll(_STATISTICS_INTERVAL_MS / 1_000))
        raise EnvironmentFailure(f"the statistics of librdkafka do not show the producer id of {free.name}")

    def _free_id(self) -> _Id:
        """An id whose last transaction has committed, else a new id."""
        for each in self._pool:
            if self._record.committed_number(each.name, self._sink.topic) >= each.number:
                return each
        name = f"{self._prefix}-{len(self._pool)}"
        answers: list[Any] = []
        options = {"enable.auto.commit": False, "on_commit": lambda error, places: answers.append(error)}
        consumer = self._connection.consumer({"group.id": name, **options})
        self._call(lambda: self._commit_begin(consumer, answers))
        self._pool.append(_Id(name, consumer.consumer_group_metadata()))
        consumer.close()  # after a failure it is dropped: `close` would wait for the commit
        return self._pool[-1]

    def _commit_begin(self, consumer: Any, answers: list[Any]) -> None:
        """Creates the group of a new id. Raises KafkaException.

        A synchronous commit of librdkafka waits without limit for a coordinator that is away.
        """
        answers.clear()
        consumer.commit(offsets=[self._library.TopicPartition(self._sink.topic, 0, 0)], asynchronous=True)
        deadline = Deadline(self._connection.timeout_s)
        while not answers and not deadline.has_passed:
            consumer.poll(_ANSWER_POLL_S)
        error = answers[0] if answers else self._library.KafkaError(self._library.KafkaError._TIMED_OUT)
        if error is not None:
            raise self._library.KafkaException(error)

    def _call(self, call: Any) -> None:
        call_again(self._connection, call, f"topic {self._sink.topic!r}, transaction of {self._prefix}")
