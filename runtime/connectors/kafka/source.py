"""Topics of Kafka as a source, bounded or unbounded.

A split is a partition. Partitions are assigned to subtasks by the key group of topic and number. Offsets are therefore
keyed state and move with their key groups at a rescale, as in Flink's `KafkaSource` they move with their splits. The
consumer group has no part in this: no partition is assigned and no offset is read from it.

A source that begins or ends at the messages of its first start gets these offsets from the job master, which asks for
them once, before the first attempt (`ports.ListsInput`). An attempt that ends before the first checkpoint therefore
loses no rows: the next begins at the same offsets.

The state names the next offset of every partition from the first snapshot on, and its newest event time. Without that
time, a partition that has no message after a restore would hold back the watermark, though its time was known. A
partition without an offset in state and listing has appeared since, and is read from its beginning. An offset that the
broker no longer has fails the job: a silent reset would lose or repeat rows. State and listing also name the ids of the
topics. A topic that was deleted and made anew has another id, and its messages other offsets: the job is refused.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, groupby
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.connectors.formats.base import Malformed
from runtime.connectors.kafka.broker_offsets import (
    NO_END,
    OffsetRange,
    Partition,
    Start,
    TopicIds,
    TopicOffsets,
    check_topic_ids,
    decode_listing,
    encode_listing,
)
from runtime.connectors.kafka.connection import KafkaConnection, check_connection, check_topics
from runtime.connectors.kafka.formats import Decoded, KafkaJson, MessageFormat
from runtime.connectors.sources.event_clock import FUTURE_TIME, BoundedOutOfOrderness, check_event_time
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import DataRejected, JobRejected
from runtime.libraries import import_library
from runtime.operators.event_time import event_times_ms
from runtime.ports import NumberedRows, OperatorContext, SourceReader
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.keyed_table import KeyedTable

MALFORMED_RECORDS: Final = "malformed_records"
Metadata = Literal["topic", "partition", "offset", "timestamp", "key"]

_METADATA_TYPES: Final[Mapping[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "key": pa.binary(),
}
_NO_TIME: Final = -(2**63)  #: `max_event_time` of a partition before its first message
_Place = tuple[int, int, int]  #: next offset, end offset, maximum event time


@dataclass(frozen=True)
class KafkaSource:
    """Reads topics of Kafka.

    Args:
        servers: bootstrap servers, `host:port` separated by commas.
        topics: a topic, or several with the same format.
        format: format of the messages' values.
        start: where a run without a checkpoint begins: at the oldest or newest message, or at a time (with a time
            zone). Partitions that appear later are read from their beginning.
        event_time: column of event times; None: the source emits no watermarks.
        max_disorder_ms: bound of out-of-orderness within a partition. The watermark is the minimum over the partitions.
            None: 0, and a late row of a bounded source fails the job.
        max_future_ms: a message whose event time is further ahead of the clock is malformed. None: no limit. One such
            message would make all others late.
        idle_after_ms: a partition without messages no longer holds back the watermark after this time; messages that
            it gets later may be late. None: never. A subtask without a partition is always idle; a partition that it
            gets later holds back the watermark from its discovery by any subtask on.
        bounded: read up to the newest message at the first start, then end. If the checkpoint is of an unbounded
            source: up to the newest message at the restore, in the partitions that the checkpoint names.
        metadata: facts of each message that become columns `kafka_topic`, `kafka_partition`, `kafka_offset`,
            `kafka_timestamp` and `kafka_key` after the columns of the format.
        read_uncommitted: whether messages of open and aborted transactions are read. They may never become valid.
        on_malformed: a message that cannot be read fails the job, or is skipped and counted.
        discovery_interval_ms: how often new partitions are looked for.
        group: consumer group that gets the offsets of completed checkpoints, for monitoring only. None: no group.
        options: further options of librdkafka, such as `sasl.password`; a secret is written `${secret:NAME}`.
    """

    guarantee: ClassVar[str] = "exactly-once"

    servers: str
    topics: str | Sequence[str]
    format: MessageFormat
    start: Start = "earliest"
    event_time: str | None = None
    max_disorder_ms: int | None = None
    idle_after_ms: int | None = None
    bounded: bool = False
    metadata: Sequence[Metadata] = ()
    read_uncommitted: bool = False
    on_malformed: Literal["fail", "skip"] = "fail"
    discovery_interval_ms: int = 10_000
    group: str | None = None
    max_future_ms: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    listing: Mapping[Partition, OffsetRange] | None = field(default=None, kw_only=True, repr=False)  #: by `with_input`
    listed_ids: TopicIds = field(default_factory=dict, kw_only=True, repr=False)  #: as `listing`
    is_ordered: bool = field(default=False, kw_only=True, repr=False)  #: set by `in_order`

    def output_columns(self) -> pa.Schema | None:
        columns = self.format.columns()
        if columns is None:
            return None
        return pa.schema([*columns, *(pa.field(f"kafka_{name}", _METADATA_TYPES[name]) for name in self.metadata)])

    def with_used_columns(self, used: frozenset[str]) -> "KafkaSource":
        """The source without unused columns of the format, if the format is `KafkaJson`."""
        return (
            replace(self, format=self.format.narrow(used | {self.event_time or ""}))
            if isinstance(self.format, KafkaJson)
            else self
        )

    @property
    def has_event_time(self) -> bool:
        return self.event_time is not None

    @property
    def topic_names(self) -> tuple[str, ...]:
        return (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)

    def reader(self) -> "KafkaReader":
        return KafkaReader(self)

    def list_input(self) -> bytes | None:
        """The offsets of every partition, if they depend on the moment of the start.

        Raises:
            JobRejected: a topic is missing, or the login is refused.
            EnvironmentFailure: no broker answers.
        """
        if self.start == "earliest" and not self.bounded:
            return None
        offsets = self.topic_offsets(self.group or "weir")
        try:
            ids = offsets.topic_ids()  # first: a topic that is made anew in between gets other offsets
            ranges = offsets.ranges(offsets.partitions(), self.start, bounded=self.bounded)
        finally:
            offsets.consumer.close()
        return encode_listing(ranges, ids)

    def with_input(self, listing: bytes) -> "KafkaSource":
        ranges, ids = decode_listing(listing)
        return replace(self, listing=ranges, listed_ids=ids)

    def in_order(self) -> "KafkaSource":
        """The source whose readers read partition after partition. A partition that waits its turn is not idle."""
        return replace(self, is_ordered=True, idle_after_ms=None)

    @property
    def numbers_rows(self) -> bool:
        """Messages by their offset. Which messages are ahead of the clock depends on the attempt."""
        return self.max_future_ms is None

    def topic_offsets(self, group: str) -> TopicOffsets:
        """With a new consumer, which the caller closes."""
        connection = KafkaConnection(self.servers, self.options)
        settings = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted" if self.read_uncommitted else "read_committed",
            "enable.partition.eof": self.bounded,
        }
        return TopicOffsets(connection, self.topic_names, connection.consumer(settings))

    def check(self) -> None:
        check_connection(self.servers, self.options)
        check_topics("topics", self.topic_names)
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                raise JobRejected("bad-start", "start", "must have a time zone")
        elif self.start not in ("earliest", "latest"):
            raise JobRejected("bad-start", "start", f"must be earliest, latest or a time, not {self.start!r}")
        if self.on_malformed not in ("fail", "skip"):
            raise JobRejected("bad-policy", "on_malformed", f"must be fail or skip, not {self.on_malformed!r}")
        for name in ("discovery_interval_ms", "idle_after_ms"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise JobRejected("bad-interval", name, "must be at least 1 ms")
        for name in self.metadata:
            if name not in _METADATA_TYPES:
                names = ", ".join(_METADATA_TYPES)
                raise JobRejected("bad-metadata", "metadata", f"must be some of {names}, not {name!r}")
        self.format.check()
        if self.format.columns() is None:
            raise JobRejected("bad-format", "format", "a source needs the columns of its messages")
        check_event_time(self.event_time, self.max_disorder_ms, self.output_columns(), self.max_future_ms)


@dataclass(slots=True)
class _Split:
    """A partition that the subtask reads."""

    next_offset: int
    end_offset: int
    clock: BoundedOutOfOrderness
    active_at: int  #: time of its last message, or of its assignment (wall clock, ms)
    is_done: bool = False  #: all messages before `end_offset` have been emitted


class KafkaReader(SourceReader):
    """Reads the partitions of a subtask's key groups. Requests for metadata run on a thread of their own."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._decode = source.format.decoder()
        self._splits: dict[Partition, _Split] = {}
        self._emitted: Sequence[Any] = ()  #: messages of the last batch
        self._places: Sequence[Partition] = ()  #: their partitions
        self._waiting: list[Partition] = []  #: partitions that are not read yet, of a source that reads in order
        self._changed: set[Partition] = set()  #: partitions whose position is not in the keyed table yet
        self._watermark: int | None = None
        self._snapshots: dict[int, dict[Partition, int]] = {}  #: by checkpoint, the offsets to commit to the group
        self._discovery: Future[dict[Partition, int]] | None = None  #: new partitions with their first offsets
        self._discovered_at = 0
        self._discoveries = 0
        self._is_look_due = False  #: new partitions are looked for at the next poll, whatever the interval
        self._thread = ThreadPoolExecutor(1, "kafka-metadata")
        self._consumer: Any = None

    def open(self, context: OperatorContext) -> None:
        source, self._context = self._source, context
        self._library = import_library("confluent_kafka", "kafka")
        self._offsets = source.topic_offsets(source.group or f"weir-{context.job}-{context.uid}")
        self._connection, self._consumer = self._offsets.connection, self._offsets.consumer
        self._table: KeyedTable = context.state.keyed_table("partitions", _KEY_SCHEMA, _VALUE_SCHEMA)
        restored = self._restored_positions()
        self._topic_ids = self._offsets.topic_ids()  # first: a topic that is made anew in between is noticed later
        partitions = self._offsets.partitions()
        self._check_restored(restored, partitions)
        former = {} if context.restored else source.listed_ids
        restored_ids = self._restored_ids()
        check_topic_ids({**former, **restored_ids}, self._topic_ids)
        ended = self._with_ends(restored) if source.bounded else {}
        new_partitions = [partition for partition in self._own(partitions) if partition not in restored]
        new = {partition: (*each, _NO_TIME) for partition, each in self._first_ranges(new_partitions).items()}
        self._assign(restored | ended | new)
        self._discoveries += bool(new)
        unidentified = [partition for partition in restored if partition[0] not in restored_ids]
        self._changed.update(ended, new, unidentified)
        self._discovered_at = context.now_ms()

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._discover()
        if not self._splits:
            return None
        with self._connection.call(f"topics {', '.join(self._source.topic_names)}"):
            messages = self._consumer.consume(max_rows, 0)
        return self._emit(messages) if messages else None

    @property
    def numbered_rows(self) -> Sequence[NumberedRows]:
        """A message of a transaction, or one that compaction may remove, has its offset also when others are gone."""
        offsets = np.array([message.offset() for message in self._emitted], np.int64) + 1
        runs = [(place, len(list(run))) for place, run in groupby(self._places)]
        ends = accumulate(count for _, count in runs)
        return [
            NumberedRows(f"{topic}/{partition}", offsets[end - count : end])
            for ((topic, partition), count), end in zip(runs, ends, strict=True)
        ]

    @property
    def exhausted(self) -> bool:
        return self._source.bounded and all(split.is_done for split in self._splits.values())

    @property
    def idle(self) -> bool:
        now = self._context.now_ms()
        return not any(self._is_active(split, now) for split in self._splits.values())

    @property
    def discoveries(self) -> int:
        return self._discoveries

    def look_for_splits(self) -> None:
        self._is_look_due = not self._source.bounded

    @property
    def has_looked(self) -> bool:
        return not self._is_look_due and self._discovery is None

    def watermark(self) -> int | None:
        """The minimum over the partitions that are neither idle nor read to their end. It never decreases."""
        now = self._context.now_ms()
        active = [split.clock.watermark for split in self._splits.values() if self._is_active(split, now)]
        if active and None not in active:
            lowest = min(mark for mark in active if mark is not None)
            self._watermark = lowest if self._watermark is None else max(lowest, self._watermark)
        return self._watermark

    @property
    def max_disorder_ms(self) -> int:
        return self._source.max_disorder_ms or 0

    def snapshot(self, checkpoint: int) -> None:
        if self._source.group is not None:
            self._snapshots[checkpoint] = {partition: split.next_offset for partition, split in self._splits.items()}
        names = sorted(self._changed)
        if not names:
            return
        keys = [pa.array([topic for topic, _ in names], pa.string()), pa.array([n for _, n in names], pa.int32())]
        rows = self._table.upsert(keys)
        self._table.column("next_offset")[rows] = [self._splits[name].next_offset for name in names]
        self._table.column("end_offset")[rows] = [self._splits[name].end_offset for name in names]
        times = [self._splits[name].clock.max_event_time for name in names]
        self._table.column("max_event_time")[rows] = [_NO_TIME if time is None else time for time in times]
        ids = [bytes.fromhex(self._topic_ids.get(topic, "")) or bytes(16) for topic, _ in names]
        for column, half in zip(_ID_COLUMNS, (slice(0, 8), slice(8, 16)), strict=True):
            self._table.column(column)[rows] = [int.from_bytes(each[half], signed=True) for each in ids]
        self._table.touch(rows)
        self._changed.clear()

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        """Commits the offsets to the group, without waiting: the group is for monitoring only."""
        offsets = self._snapshots.pop(permit.checkpoint, None)
        self._snapshots = {number: places for number, places in self._snapshots.items() if number > permit.checkpoint}
        if offsets:
            positions = [self._position(*each) for each in offsets.items()]
            with self._connection.call(f"offsets of group {self._source.group}"):
                self._consumer.commit(offsets=positions, asynchronous=True)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)  # the consumer must not be closed under a request
        if self._consumer is not None:
            self._consumer.close()

    # ------------------------------------------------------------ partitions

    def _restored_positions(self) -> dict[Partition, _Place]:
        rows = self._table.row_ids()
        topics, numbers = (self._table.key_column(name, rows).to_pylist() for name in _KEY_SCHEMA.names)
        values = [self._table.value_column(name, rows).to_pylist() for name in _POSITION_COLUMNS]
        return dict(zip(zip(topics, numbers, strict=True), zip(*values, strict=True), strict=True))

    def _restored_ids(self) -> TopicIds:
        """The ids of the topics that the state names. A topic whose id was unknown is missing."""
        rows = self._table.row_ids()
        topics = self._table.key_column("topic", rows).to_pylist()
        halves = [self._table.value_column(name, rows).to_pylist() for name in _ID_COLUMNS]
        ids = [b"".join(half.to_bytes(8, signed=True) for half in each) for each in zip(*halves, strict=True)]
        return {topic: identity.hex() for topic, identity in zip(topics, ids, strict=True) if any(identity)}

    def _check_restored(self, restored: Mapping[Partition, Any], partitions: Sequence[Partition]) -> None:
        """Raises JobRejected if a partition of the state does not exist: its rows would be missing silently."""
        for topic, number in sorted(set(restored).difference(partitions)):
            if topic not in self._source.topic_names:
                remedy = "add the topic again, or start the job without a checkpoint"
                raise JobRejected("other-topics", "topics", f"the checkpoint reads topic {topic!r}: {remedy}")
            remedy = "the topic was created anew: start the job without a checkpoint"
            raise JobRejected("missing-partition", "topics", f"topic {topic!r} has no partition {number}: {remedy}")

    def _with_ends(self, restored: Mapping[Partition, _Place]) -> dict[Partition, _Place]:
        """The positions without an end, with the newest offset as their end: the restored source was unbounded."""
        endless = [partition for partition, (_, end_offset, _) in restored.items() if end_offset == NO_END]
        listed = self._source.listing or {}
        ends = {partition: listed[partition][1] for partition in endless if partition in listed}
        ends |= self._offsets.offsets([partition for partition in endless if partition not in ends], "latest")
        return {partition: (restored[partition][0], ends[partition], restored[partition][2]) for partition in endless}

    def _first_ranges(self, new: Sequence[Partition]) -> dict[Partition, OffsetRange]:
        """Offsets of partitions without a position. The input of a bounded source was fixed at the first start."""
        source = self._source
        listed: Mapping[Partition, OffsetRange] | None = {} if self._context.restored else source.listing
        if listed is None:
            return self._offsets.ranges(new, source.start, bounded=source.bounded)
        later = [] if source.bounded else [partition for partition in new if partition not in listed]
        ranges = {partition: listed[partition] for partition in new if partition in listed}
        return ranges | self._offsets.ranges(later, "earliest", bounded=False)

    def _own(self, partitions: Sequence[Partition]) -> list[Partition]:
        if not partitions:
            return []
        topics = pa.array([topic for topic, _ in partitions], pa.string())
        numbers = pa.array([number for _, number in partitions], pa.int32())
        groups = key_groups_of_hashes(hash_columns([topics, numbers]), self._context.max_parallelism)
        key_groups = self._context.key_groups
        return [each for each, group in zip(partitions, groups.tolist(), strict=True) if group in key_groups]

    def _assign(self, positions: Mapping[Partition, _Place]) -> None:
        now, source = self._context.now_ms(), self._source
        for partition, (next_offset, end_offset, newest) in positions.items():
            newest_time = None if newest == _NO_TIME else newest
            clock = BoundedOutOfOrderness(source.event_time, source.max_disorder_ms, newest_time)
            end = end_offset if source.bounded else NO_END  # an unbounded source reads past a restored end
            is_done = end != NO_END and next_offset >= end
            self._splits[partition] = _Split(next_offset, end, clock, now, is_done)
        self._waiting = sorted(partition for partition in positions if not self._splits[partition].is_done)
        self._read_waiting()

    def _read_waiting(self) -> None:
        """Begins to read the partitions that wait; a single partition if they are read in order."""
        count = 1 if self._source.is_ordered else len(self._waiting)
        begun, self._waiting = self._waiting[:count], self._waiting[count:]
        if begun:
            self._consumer.incremental_assign([self._position(each, self._splits[each].next_offset) for each in begun])

    def _discover(self) -> None:
        """Adds partitions that appeared since the last look.

        A look that fails ends the attempt. librdkafka itself repeats failed reads for ever and in silence, so the look
        is also how an outage or a deleted topic becomes known.
        """
        source, now = self._source, self._context.now_ms()
        if source.bounded:
            return
        if self._discovery is None:
            if self._is_look_due or now - self._discovered_at >= source.discovery_interval_ms:
                self._is_look_due, self._discovered_at = False, now
                self._discovery = self._thread.submit(self._find_new)
            return
        if not self._discovery.done():
            return
        offsets, self._discovery = self._discovery.result(), None
        self._assign({partition: (offset, NO_END, _NO_TIME) for partition, offset in offsets.items()})
        self._discoveries += bool(offsets)
        self._changed.update(offsets)

    def _find_new(self) -> dict[Partition, int]:
        """Partitions without a position, with their first offsets. Runs on the metadata thread."""
        check_topic_ids(self._topic_ids, self._offsets.topic_ids())
        places = self._own(self._offsets.partitions())
        return self._offsets.offsets([partition for partition in places if partition not in self._splits], "earliest")

    def _position(self, partition: Partition, offset: int) -> Any:
        return self._library.TopicPartition(*partition, offset)

    def _is_active(self, split: _Split, now: int) -> bool:
        after_ms = self._source.idle_after_ms
        return not split.is_done and (after_ms is None or now - split.active_at < after_ms)

    # ------------------------------------------------------------ messages

    def _emit(self, messages: Sequence[Any]) -> pa.RecordBatch | None:
        """The rows of `messages`, after which the positions are those of the next messages."""
        now = self._context.now_ms()
        records, places = [], []
        for message in messages:
            place = (message.topic(), message.partition())
            if message.error() is not None:
                self._on_error(place, message)
                continue
            split, offset = self._splits[place], message.offset()
            if split.is_done:
                continue  # a message that was appended after the first start
            if split.end_offset == NO_END or offset < split.end_offset:
                records.append(message)
                places.append(place)
                split.next_offset, split.active_at = offset + 1, now
                self._changed.add(place)
            self._check_end(place, offset + 1)
        if not records:
            return None
        decoded = self._without_future(self._decode([message.value() for message in records]), now)
        if decoded.malformed:
            self._on_malformed(records, decoded.malformed)
        if not decoded.batch.num_rows:
            return None
        if decoded.rows is not None:
            rows = decoded.rows.tolist()
            records, places = [records[row] for row in rows], [places[row] for row in rows]
        self._emitted, self._places = records, places
        batch = self._with_metadata(decoded.batch, records)
        self._advance_clocks(batch, places)
        return batch

    def _without_future(self, decoded: Decoded, now: int) -> Decoded:
        """The messages without those whose event time is too far ahead of the clock: these are malformed."""
        column, bound_ms, batch = self._source.event_time, self._source.max_future_ms, decoded.batch
        if column is None or bound_ms is None or not batch.num_rows or batch.column(column).null_count:
            return decoded
        bad = event_times_ms(batch, column) > now + bound_ms
        if not bad.any():
            return decoded
        rows = np.arange(batch.num_rows) if decoded.rows is None else decoded.rows
        texts = batch.filter(pa.array(bad)).to_pylist()
        future = [
            Malformed(row=int(row), column=column, reason=FUTURE_TIME, text=str(text))
            for row, text in zip(rows[bad], texts, strict=True)
        ]
        malformed = sorted([*decoded.malformed, *future], key=lambda item: item.row or 0)
        return Decoded(batch.filter(pa.array(~bad)), rows[~bad], tuple(malformed))

    def _check_end(self, place: Partition, position: int) -> None:
        """Ends a bounded partition when `position` has reached its end; markers of transactions use offsets too."""
        split = self._splits[place]
        if not split.is_done and split.end_offset != NO_END and position >= split.end_offset:
            split.is_done, split.next_offset = True, split.end_offset
            self._changed.add(place)
            self._consumer.incremental_unassign([self._position(place, 0)])
            self._read_waiting()

    def _on_error(self, place: Partition, message: Any) -> None:
        error, (topic, number) = message.error(), place
        if error.code() == self._library.KafkaError._PARTITION_EOF:
            self._check_end(place, message.offset())
            return
        what = f"topic {topic!r}, partition {number}"
        if error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            check_topic_ids(self._topic_ids, self._offsets.topic_ids())
            offset = self._splits[place].next_offset
            remedy = (
                "its retention has deleted them, or the topic was created anew. Restore a newer checkpoint, or start "
                "the job without a checkpoint; a longer retention of the topic prevents it"
            )
            raise JobRejected("offset-gone", "topics", f"{what}: the messages from offset {offset} are gone: {remedy}")
        if not error.retriable() or error.fatal():
            raise self._connection.failure_of(error, what)

    def _on_malformed(self, messages: Sequence[Any], malformed: Sequence[Malformed]) -> None:
        first = malformed[0]
        if self._source.on_malformed == "fail":
            message = messages[first.row or 0]
            where = f"topic {message.topic()!r}, partition {message.partition()}, offset {message.offset()}"
            column = f", column {first.column!r}" if first.column else ""
            raise DataRejected(f"{where}{column}: {first.reason[:1_000]}")
        self._context.count(MALFORMED_RECORDS, len(malformed))

    def _advance_clocks(self, batch: pa.RecordBatch, places: Sequence[Partition]) -> None:
        if self._source.event_time is None:
            return
        numbers: dict[Partition, int] = {}
        owner: npt.NDArray[np.int64] = np.array([numbers.setdefault(place, len(numbers)) for place in places])
        for place, number in numbers.items():
            rows = batch if len(numbers) == 1 else batch.filter(pa.array(owner == number))
            self._splits[place].clock.on_batch(rows)

    def _with_metadata(self, batch: pa.RecordBatch, messages: Sequence[Any]) -> pa.RecordBatch:
        names = self._source.metadata
        if not names:
            return batch
        columns = [
            pa.array([_METADATA_VALUES[name](message) for message in messages], _METADATA_TYPES[name]) for name in names
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self._source.output_columns())


_METADATA_VALUES: Final[Mapping[str, Any]] = {
    "topic": lambda message: message.topic(),
    "partition": lambda message: message.partition(),
    "offset": lambda message: message.offset(),
    "timestamp": lambda message: message.timestamp()[1],
    "key": lambda message: message.key(),
}
_KEY_SCHEMA: Final = pa.schema([pa.field("topic", pa.string()), pa.field("partition", pa.int32())])
_POSITION_COLUMNS: Final = ("next_offset", "end_offset", "max_event_time")
_ID_COLUMNS: Final = ("topic_id_high", "topic_id_low")  #: halves of the id of the topic; 0: unknown
_VALUE_SCHEMA: Final = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in (*_POSITION_COLUMNS, *_ID_COLUMNS)]
)
