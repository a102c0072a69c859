"""Rows of Arrow batches as messages of a topic, through a producer of librdkafka."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import pyarrow as pa

from runtime.connectors.kafka.connection import TOO_LARGE, KafkaConnection
from runtime.connectors.kafka.formats import Encode, key_bytes
from runtime.errors import DataRejected, JobRejected, TargetAway
from runtime.libraries import import_library

PARTITIONER: Final = "murmur2_random"  #: a key goes to the partition that Java producers choose
#: Messages as rows, for files that hold them until their checkpoint has completed.
HELD_MESSAGES: Final = pa.schema([pa.field("weir_key", pa.large_binary()), pa.field("weir_value", pa.large_binary())])
_QUEUE_FULL_POLL_S: Final = 0.1
_MAX_KEY_BYTES: Final = 100  #: in an error


_Failure = tuple[Any, Any, Any]  #: of a delivery: error, key, value


class Messages(Protocol):
    """The topic of the messages, and the column with their keys."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> str | None: ...


class MessageProducer:
    """Produces messages through a producer of librdkafka, and keeps failed deliveries."""

    def __init__(self, to: Messages, connection: KafkaConnection, producer: Any) -> None:
        self._to, self._connection, self.producer = to, connection, producer
        self._library = import_library("confluent_kafka", "kafka")
        self._failures: list[_Failure] = []
        self._on_delivery = _collect(self._failures)

    def write_held(self, batch: pa.RecordBatch) -> None:
        """Queues messages as rows of `HELD_MESSAGES`. Blocks and raises as `produce`."""
        self.produce(*(column.to_pylist() for column in batch.columns))

    def produce(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Queues messages; blocks while the queue of the producer is full.

        Raises:
            DataRejected: a message is too large.
            EnvironmentFailure, JobRejected: a delivery has failed.
        """
        messages = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
        while messages:
            with self._call, contextlib.suppress(BufferError):  # the queue is full: the messages carry the error
                self.producer.produce_batch(self._to.topic, messages, on_delivery=self._on_delivery)
            messages = [each for each in messages if self._is_left(each)]
            self._poll(_QUEUE_FULL_POLL_S if messages else 0)

    def flush(self) -> None:
        """Waits until the broker has acknowledged every row.

        Raises:
            TargetAway: the broker acknowledges no row any more; librdkafka has repeated the requests until now.
        """
        left = self._flush()
        while left and not self._failures:  # as long as deliveries go on
            before, left = left, self._flush()
            if left >= before:
                what = f"Kafka at {self._connection.servers}: topic {self._to.topic!r}"
                problem = f"{left} rows are not acknowledged within {self._connection.timeout_s:g} s"
                raise TargetAway(f"{what}: {problem}: check disks, load and in-sync replicas of its brokers")
        self._check()

    def _is_left(self, message: dict[str, Any]) -> bool:
        error = message.pop("_error", None)
        if error is None:
            return False
        if error.code() == self._library.KafkaError._QUEUE_FULL:
            return True
        self._poll(0)  # the first failed delivery says more
        self._failures.append((error, message["key"], message["value"]))
        self._check()
        return False

    @property
    def _what(self) -> str:
        return f"topic {self._to.topic!r}"

    @property
    def _call(self) -> AbstractContextManager[None]:
        return self._connection.call(self._what)

    def _flush(self) -> int:
        """The number of rows that the broker has not acknowledged within `timeout_s`."""
        with self._call:
            return int(self.producer.flush(self._connection.timeout_s))

    def _poll(self, timeout_s: float) -> None:
        """Learns of deliveries. Raises as `produce`."""
        with self._call:
            self.producer.poll(timeout_s)
        self._check()

    def _check(self) -> None:
        if not self._failures:
            return
        error = self._failures[0][0]
        size, key = max((_size(key) + _size(value), key or b"") for _, key, value in self._failures)
        message = f", a message of {size:,} bytes with key {key[:_MAX_KEY_BYTES]!r}, or its batch"
        raise self._connection.failure_of(error, self._what + (message if error.name() in TOO_LARGE else ""))


def _collect(failures: list[_Failure]) -> Callable[[Any, Any], None]:
    """A callback that collects failed deliveries.

    librdkafka may call it with the fatal error of the producer pending as an exception. The callback then looks up no
    attribute of a class of Python's: that would clear the exception.
    """

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            failures.append((error, message.key(), message.value()))

    return on_delivery


def _size(part: bytes | None) -> int:
    return 0 if part is None else len(part)


class RowProducer(MessageProducer):
    """Produces rows as messages."""

    def __init__(self, to: Messages, encode: Encode, connection: KafkaConnection, producer: Any) -> None:
        super().__init__(to, connection, producer)
        self._encode = encode

    def write(self, batch: pa.RecordBatch) -> None:
        """Queues rows. Blocks and raises as `produce`; DataRejected also for a row that the format cannot hold."""
        self.produce(*_keys_and_values(self._to, self._encode, batch))


def hold_messages(to: Messages, encode: Encode, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as messages, in rows of `HELD_MESSAGES`. Raises JobRejected or DataRejected as `RowProducer.write`."""
    columns = [pa.array(values, pa.large_binary()) for values in _keys_and_values(to, encode, batch)]
    return pa.RecordBatch.from_arrays(columns, schema=HELD_MESSAGES)


def _keys_and_values(to: Messages, encode: Encode, batch: pa.RecordBatch) -> tuple[Sequence[Any], Sequence[Any]]:
    """The messages of the rows: their keys, or None, and their values."""
    if to.key is not None and to.key not in batch.schema.names:
        names = ", ".join(batch.schema.names)
        raise JobRejected("missing-column", "key", f"the rows have no column {to.key!r}; they have {names}")
    try:
        keys = [None] * batch.num_rows if to.key is None else key_bytes(batch.column(to.key))
        return keys, encode(batch)
    except (pa.ArrowException, ValueError, OverflowError) as error:  # of the conversion to text or to Python
        detail = f"topic {to.topic!r}: the rows cannot be written as messages: {error}"
        raise DataRejected(f"{detail}: correct or cast the column") from error
