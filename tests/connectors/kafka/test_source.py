"""The Kafka source on a real broker: every message once across restores and rescales, discovery, ends, watermarks."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.formats.csv import CsvFormat
from runtime.connectors.kafka.broker_offsets import NO_END, TopicOffsets, encode_listing
from runtime.connectors.kafka.formats import KafkaBytes, KafkaJson
from runtime.connectors.kafka.source import MALFORMED_RECORDS, KafkaReader, KafkaSource
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.hybrid import then
from runtime.core.job.ids import CheckpointId, OperatorId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.dataflow.plan import source_with_input
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, WeirError, is_outage
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Source
from spark_jobs.batch.execute import _with_input
from spark_jobs.batch.plan import BatchStage, ReadSource, WriteSink
from tests.contracts.files import Reading, drop
from tests.kafka import QUIET, Broker, free_port, running_broker
from tests.kafka_proxy import Proxy, proxied_broker
from tests.manual_clock import ManualClock
from tests.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.int64())])
JSON = KafkaJson(SCHEMA)


def values(numbers: range, *, at: int | None = None) -> list[bytes | None]:
    return [json.dumps({"id": number, "at": number * 10 if at is None else at}).encode() for number in numbers]


def source(broker: Broker, *topics: str, **arguments: Any) -> KafkaSource:
    source = KafkaSource(broker.servers, topics, arguments.pop("format", JSON), **arguments)
    source.check()
    return source


def read(readings: list[Reading], count: int, max_rows: int = 1_000) -> list[int]:
    """Ids until `count` rows have come."""
    ids: list[int] = []

    def has_all() -> bool:
        for reading in readings:
            batch = reading.poll(max_rows)
            ids.extend(batch.column("id").to_pylist() if batch is not None else ())
        return len(ids) >= count

    until(has_all, 30.0, or_else=lambda: f"but {len(ids)} of {count} rows")
    return ids


METADATA = 3
API_VERSIONS = 18
UNSUPPORTED_VERSION = 35


@contextmanager
def broker_without_ids(port: int) -> Iterator[Broker]:
    def rule(api: int, body: bytes) -> bytes | None:
        if api == API_VERSIONS and b"\rkafka-python" in body:  # not confluent-kafka-python
            return struct.pack(">hi", UNSUPPORTED_VERSION, 0)  # it asks again, by version 0
        return struct.pack(">hihhh", 0, 1, METADATA, 0, 9) if api == API_VERSIONS and body == b"\0\4weir" else None

    with proxied_broker(port) as proxy:
        proxy.rule = rule
        yield proxy.broker


def closing(readings: list[Reading]) -> None:
    for reading in readings:
        reading.reader.close()


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_every_message_is_read_once_across_restores_at_any_parallelism(seed: int, broker: Broker) -> None:
    """S1-22, S4-50: a restore continues at the exact offsets of its snapshot; rows after it are read again."""
    random_ = random.Random(seed)
    topic, total = broker.topic(5), 0
    store, clock, committed = MemorySnapshotStore(), ManualClock(1_000_000), list[int]()
    snapshots: list[Any] = []
    for attempt in range(4):
        for partition in range(5):
            size = random_.randrange(0, 40)
            broker.produce(topic, values(range(total, total + size)), partition)
            total += size
        parallelism = random_.choice([2, 3, 1])
        readings = [
            Reading(
                source(broker, topic), store=store, snapshots=snapshots, index=i, parallelism=parallelism, clock=clock
            )
            for i in range(parallelism)
        ]
        uncommitted = read(readings, random_.randrange(0, total - len(committed) + 1), random_.randrange(1, 30))
        if random_.random() < 0.7:
            snapshots = [reading.snapshot(f"chk-{attempt}") for reading in readings]
            committed += uncommitted
        closing(readings)
    last = [
        Reading(source(broker, topic), store=store, snapshots=snapshots, index=i, parallelism=3, clock=clock)
        for i in range(3)
    ]
    committed += read(last, total - len(committed))
    assert all(reading.poll() is None for reading in last)
    closing(last)
    assert sorted(committed) == list(range(total))


def test_a_live_part_begins_at_the_offsets_of_the_first_start_however_long_its_history_takes(
    broker: Broker, tmp_path: Path
) -> None:
    """S0-08: also after a rescale. Messages that came while the history was read are not lost."""
    topic = broker.topic(3)
    for partition in range(3):
        broker.produce(topic, values(range(900, 905)), partition)
    drop(tmp_path, "a.csv", "id,at\n" + "".join(f"{number},{number}\n" for number in range(20)))
    history = DirectorySource(str(tmp_path), CsvFormat(SCHEMA), bounded=True)
    declared = then(history, source(broker, topic, start="latest"))
    declared.check()
    readings = [Reading(source_with_input(declared, declared.list_input()), index=i, parallelism=2) for i in range(2)]
    ids = [row["id"] for reading in readings for row in reading.rows(7)]
    snapshots = [reading.snapshot("chk-1") for reading in readings]
    closing(readings)
    for partition in range(3):
        broker.produce(topic, values(range(100 * partition + 100, 100 * partition + 110)), partition)
    later = source_with_input(declared, declared.list_input())  # as a new run lists it: behind these messages
    restored = [Reading(later, store=readings[0].store, snapshots=snapshots, index=i, parallelism=3) for i in range(3)]
    assert [reading.poll() for reading in restored] == [None] * 3
    for reading in restored:
        reading.reader.begin_live()
    ids += read(restored, 30)
    closing(restored)
    live = [100 * partition + 100 + number for partition in range(3) for number in range(10)]
    assert sorted(ids) == sorted([*range(20), *live])


def test_a_new_partition_is_found_and_read_from_its_beginning() -> None:
    """S1-22: while the job runs, and after a restore; also where the job itself began at the newest message.

    This broker cannot add partitions, so another one with the same messages and more partitions takes its port. It does
    not offer ids of topics, as brokers before Kafka 3.1.
    """
    clock, port, ids = ManualClock(1_000_000), free_port(), list[int]()
    with broker_without_ids(port) as first_broker:
        topic = first_broker.topic(1)
        first_broker.produce(topic, values(range(5)))
        kafka_source = source(first_broker, topic, start="latest", discovery_interval_ms=100)
        reading = Reading(kafka_source, clock=clock)
        assert reading.poll() is None
    with broker_without_ids(port) as second_broker:
        second_broker.topic(2, topic)
        second_broker.produce(topic, values(range(7)), 0)
        second_broker.produce(topic, values(range(100, 103)), 1)

        def has_all() -> bool:
            clock.advance(100)
            batch = reading.poll()
            ids.extend(batch.column("id").to_pylist() if batch is not None else ())
            return len(ids) >= 5

        until(has_all, 30.0, or_else=lambda: f"but {ids}")
        assert sorted(ids) == [5, 6, 100, 101, 102]
        snapshot = reading.snapshot("chk-1")
        closing([reading])
    with broker_without_ids(port) as third_broker:
        third_broker.topic(3, topic)
        third_broker.produce(topic, values(range(7)), 0)
        third_broker.produce(topic, values(range(100, 104)), 1)
        third_broker.produce(topic, values(range(200, 203)), 2)
        successor = Reading(kafka_source, store=reading.store, snapshots=[snapshot], clock=clock)
        assert sorted(read([successor], 4)) == [103, 200, 201, 202]
        closing([successor])


def test_a_requested_look_asks_for_new_partitions_before_its_interval_has_passed(broker: Broker) -> None:
    topic = broker.topic(1)
    reading = Reading(source(broker, topic, discovery_interval_ms=10_000_000), clock=ManualClock())
    assert (reading.poll(), reading.reader.discoveries, reading.reader.has_looked) == (None, 1, True)
    reading.reader.look_for_splits()
    assert not reading.reader.has_looked
    until(lambda: reading.poll() is None and reading.reader.has_looked)
    assert reading.reader.discoveries == 1, "there is no new partition"
    closing([reading])


def test_a_message_of_the_far_future_is_malformed(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.produce(topic, [b'{"id": 1, "at": 5}', b'{"id": 2, "at": 253370764800000}', b'{"id": 3, "at": 6}'])
    kafka_source = source(broker, topic, event_time="at", max_future_ms=1_000, on_malformed="skip")
    reading = Reading(kafka_source)
    assert read([reading], 2) == [1, 3]
    assert reading.reader.watermark() == 5
    closing([reading])


def test_the_start_is_the_oldest_message_the_newest_or_a_time(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.produce(topic, values(range(2)))
    before = datetime.now(UTC)
    until(lambda: datetime.now(UTC) > before + timedelta(milliseconds=20))
    moment = datetime.now(UTC)
    broker.produce(topic, values(range(2, 4)))
    starts: list[tuple[Any, list[int]]] = [("earliest", [0, 1, 2, 3, 9]), (moment, [2, 3, 9]), ("latest", [9])]
    readings = [Reading(source(broker, topic, start=start)) for start, _ in starts]
    broker.produce(topic, values(range(9, 10)))
    for reading, (_, ids) in zip(readings, starts, strict=True):
        assert read([reading], len(ids)) == ids
    closing(readings)


def test_a_bounded_source_ends_at_the_newest_message_of_its_first_start(broker: Broker) -> None:
    """S1-22: the end is state. Messages that come later, also before a restore, are not read."""
    topic = broker.topic(3)
    broker.produce(topic, values(range(10)), 0)
    broker.produce(topic, values(range(10, 14)), 1)
    reading = Reading(source(broker, topic, bounded=True))
    assert not reading.exhausted()
    snapshot = reading.snapshot("chk-1")
    reading.reader.close()
    broker.produce(topic, values(range(50, 60)), 0)
    broker.produce(topic, values(range(60, 70)), 2)
    successor = Reading(source(broker, topic, bounded=True), store=reading.store, snapshots=[snapshot])
    assert sorted(read([successor], 14)) == list(range(14))
    until(lambda: successor.poll() is None and successor.exhausted(), 30.0)
    end = successor.snapshot("chk-2")
    closing([successor])
    last = Reading(source(broker, topic, bounded=True), store=successor.store, snapshots=[end])
    assert last.exhausted()
    closing([last])


def test_an_unbounded_source_reads_past_the_restored_end_of_a_bounded_one(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.produce(topic, values(range(3)), 0)
    broker.produce(topic, values(range(10, 13)), 1)
    first = Reading(source(broker, topic, bounded=True))
    assert len(read([first], 1, max_rows=1)) == 1
    snapshot = first.snapshot("chk-1")
    broker.produce(topic, values(range(20, 22)), 0)
    broker.produce(topic, values(range(30, 32)), 1)
    successor = Reading(source(broker, topic), store=first.store, snapshots=[snapshot])
    assert sorted(read([successor], 5 + 4))[-4:] == [20, 21, 30, 31]
    closing([first, successor])


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_bounded_source_ends_if_it_restores_the_state_of_an_unbounded_one(is_listed: bool, broker: Broker) -> None:
    """Its end is the newest message of the restore, listed by the job master if that reaches the broker."""
    topic = broker.topic(2)
    broker.produce(topic, values(range(3)), 0)
    first = Reading(source(broker, topic))
    assert read([first], 2, max_rows=2) == [0, 1]
    snapshot = first.snapshot("chk-1")
    broker.produce(topic, values(range(10, 12)), 1)
    bounded: Source = source(broker, topic, bounded=True)
    if is_listed:
        bounded = source_with_input(bounded, source(broker, topic, bounded=True).list_input())
        broker.produce(topic, values(range(20, 22)), 0)
    second = Reading(bounded, store=first.store, snapshots=[snapshot])
    assert not second.exhausted()
    end = second.snapshot("chk-2")
    broker.produce(topic, values(range(30, 32)), 0)
    successor = Reading(source(broker, topic, bounded=True), store=second.store, snapshots=[end])
    for reading in (second, successor):
        assert sorted(read([reading], 3)) == [2, 10, 11]
    until(lambda: all(reading.poll() is None and reading.exhausted() for reading in (second, successor)), 30.0)
    last = Reading(source(broker, topic, bounded=True), store=successor.store, snapshots=[successor.snapshot("chk-3")])
    assert last.exhausted()
    closing([first, second, successor, last])


def test_the_offsets_of_the_job_master_count_in_every_attempt(broker: Broker) -> None:
    """An attempt that ends before the first checkpoint leaves no state: its rows must be read again."""
    topic = broker.topic(2)
    broker.produce(topic, values(range(5)), 0)
    cases: list[tuple[KafkaSource, list[int]]] = [
        (source(broker, topic, start="latest"), [5, 6, 50]),
        (source(broker, topic, bounded=True), [0, 1, 2, 3, 4]),
    ]
    listings = [of.list_input() for of, _ in cases]
    assert source(broker, topic).list_input() is None, "the oldest message is the same for all attempts"
    broker.produce(topic, values(range(5, 7)), 0)
    broker.produce(topic, values(range(50, 51)), 1)
    for (of, expected), listing in zip(cases, listings, strict=True):
        for _ in range(2):
            reading = Reading(source_with_input(of, listing))
            assert sorted(read([reading], len(expected))) == expected
            until(lambda reading=reading: reading.poll() is None, 30.0)  # type: ignore[misc]
            assert reading.exhausted() is of.bounded
            closing([reading])


@pytest.mark.parametrize("bounded", [False, True])
def test_a_partition_that_is_not_listed_is_read_from_its_beginning_or_not_at_all(broker: Broker, bounded: bool) -> None:
    """A restored position has precedence over the listing."""
    topic = broker.topic(2)
    for partition in range(2):
        broker.produce(topic, values(range(partition * 10, partition * 10 + 3)), partition)
    kafka_source = source(broker, topic, bounded=bounded)
    of = source_with_input(kafka_source, encode_listing({(topic, 0): (1, 3 if bounded else NO_END)}, {}))
    expected = [1, 2] if bounded else [1, 2, 10, 11, 12]
    first = Reading(of)
    assert sorted(read([first], len(expected))) == expected
    snapshot = first.snapshot("chk-1")
    broker.produce(topic, values(range(20, 21)), 0)
    successor = Reading(of, store=first.store, snapshots=[snapshot])
    assert successor.exhausted() if bounded else read([successor], 1) == [20]
    closing([first, successor])


def test_a_task_of_batch_that_is_repeated_reads_the_same_rows_in_the_same_order(broker: Broker) -> None:
    """A rebalance shares rows by their number. The broker of the tests would seldom let partitions alternate."""
    topic = broker.topic(3)
    for partition in (2, 0, 1):
        broker.produce(topic, values(range(partition * 100, partition * 100 + 30)), partition)
    kafka_source = source(broker, topic, bounded=True, event_time="at", idle_after_ms=1)
    stage = BatchStage(
        number=0, head=ReadSource(uid=OperatorId("in"), source=kafka_source, parallelism=1), steps=(),
        tail=WriteSink(uid=OperatorId("out"), sink=DiscardSink()),
    )  # fmt: skip
    head = _with_input(stage).head
    assert isinstance(head, ReadSource)
    attempts = list[list[int]]()
    for _ in range(2):
        reading = Reading(head.source)
        assert isinstance(reading.reader, KafkaReader)
        assert [each.partition for each in reading.reader._consumer.assignment()] == [0], "a partition at a time"
        attempts.append(read([reading], 90, max_rows=7))
        until(lambda reading=reading: reading.poll() is None and reading.exhausted(), 30.0)  # type: ignore[misc]
        closing([reading])
        broker.produce(topic, values(range(900, 920)), 0)
    assert attempts[0] == attempts[1] == [partition * 100 + number for partition in range(3) for number in range(30)]


def test_a_bounded_source_ends_behind_the_marker_of_a_transaction(broker: Broker) -> None:
    """The last offset of the partition is that of a marker, which no consumer gets."""
    topic = broker.topic(1)
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic, **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, values(range(1))[0], partition=0)
    producer.commit_transaction(30)
    reading = Reading(source(broker, topic, bounded=True))
    assert read([reading], 1) == [0]
    until(lambda: reading.poll() is None and reading.exhausted(), 30.0)
    closing([reading])


def test_the_watermark_is_the_minimum_over_partitions_and_idle_partitions_are_set_aside(broker: Broker) -> None:
    """Event time of a subtask follows its slowest partition, until that is idle; it never goes back."""
    topic, clock = broker.topic(2), ManualClock(1_000_000)
    reading = Reading(source(broker, topic, event_time="at", max_disorder_ms=5, idle_after_ms=1_000), clock=clock)

    def idle() -> bool:
        return reading.reader.idle

    mark: Callable[[], int | None] = reading.reader.watermark
    assert mark() is None
    broker.produce(topic, values(range(1), at=500), 0)
    read([reading], 1)
    assert mark() is None, "partition 1 has no message yet"
    assert not idle()
    broker.produce(topic, values(range(1), at=300), 1)
    read([reading], 1)
    assert mark() == 294
    clock.advance(600)
    broker.produce(topic, values(range(1), at=700), 0)
    read([reading], 1)
    assert mark() == 294
    clock.advance(600)
    assert mark() == 694, "partition 1 is idle"
    assert not idle()
    broker.produce(topic, values(range(1), at=400), 1)
    read([reading], 1)
    assert mark() == 694
    clock.advance(1_000)
    assert idle()
    closing([reading])


def test_the_event_time_of_a_partition_survives_a_restore(broker: Broker) -> None:
    """A partition without a message after the restore holds nothing back; it is known how far it came."""
    topic = broker.topic(2)
    kafka_source = source(broker, topic, event_time="at")
    broker.produce(topic, values(range(1), at=500), 0)
    broker.produce(topic, values(range(1), at=700), 1)
    reading = Reading(kafka_source)
    read([reading], 2)
    snapshot = reading.snapshot("chk-1")
    closing([reading])
    broker.produce(topic, values(range(1), at=600), 0)
    successor = Reading(kafka_source, store=reading.store, snapshots=[snapshot])
    read([successor], 1)
    assert successor.reader.watermark() == 599
    closing([successor])


def test_messages_of_open_transactions_wait_unless_the_source_reads_uncommitted(broker: Broker) -> None:
    """S1-58: both isolation levels of a reader, as far as the broker of the tests has them."""
    topic = broker.topic(1)
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic, **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, values(range(1))[0], partition=0)
    assert producer.flush(30) == 0
    committed, uncommitted = (Reading(source(broker, topic, read_uncommitted=flag)) for flag in (False, True))
    assert read([uncommitted], 1) == [0]
    assert committed.poll() is None
    assert broker.end(topic) == 0
    producer.commit_transaction(30)
    assert read([committed], 1) == [0]
    closing([committed, uncommitted])


def test_offsets_that_the_broker_does_not_have_fail_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock cluster of librdkafka reports an offset out of range, which the other broker does not."""
    monkeypatch.setattr(TopicOffsets, "topic_ids", lambda self: {})  # two mock clusters stand for one broker
    mock = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, **QUIET})
    metadata = mock.list_topics("t", timeout=30)
    mocked = Broker(",".join(f"{each.host}:{each.port}" for each in metadata.brokers.values()))
    mocked.produce("t", values(range(10)))
    reading = Reading(source(mocked, "t"))
    read([reading], 10)
    snapshot = reading.snapshot("chk-1")
    closing([reading])
    other = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, **QUIET})
    emptied = Broker(
        ",".join(f"{each.host}:{each.port}" for each in other.list_topics("t", timeout=30).brokers.values())
    )
    emptied.produce("t", values(range(3)))
    successor = Reading(source(emptied, "t"), store=reading.store, snapshots=[snapshot])
    with pytest.raises(JobRejected, match=r"partition \d: the messages from offset 10 are gone.*retention"):
        until(lambda: successor.poll() is not None, 30.0)
    closing([successor])


def test_a_missing_topic_and_a_missing_partition_are_named(broker: Broker) -> None:
    with pytest.raises(JobRejected, match=r"topics: .*topic 'never-made'.*create the topic"):
        Reading(source(broker, "never-made"))
    topic, other = broker.topic(2), broker.topic(1)
    reading = Reading(source(broker, topic))
    snapshot = reading.snapshot("chk-1")
    closing([reading])
    with pytest.raises(JobRejected, match=f"the checkpoint reads topic '{topic}'"):
        Reading(source(broker, other), store=reading.store, snapshots=[snapshot])
    broker.delete(topic)
    broker.topic(1, topic)
    with pytest.raises(JobRejected, match=f"topic '{topic}' has no partition 1"):
        Reading(source(broker, topic), store=reading.store, snapshots=[snapshot])


def test_a_topic_that_was_made_anew_is_refused_at_a_restore(broker: Broker) -> None:
    """The former offset was read on from: 50 rows of the new topic were skipped in silence."""
    topic = broker.topic(1)
    broker.produce(topic, values(range(50)))
    reading = Reading(source(broker, topic))
    read([reading], 50)
    snapshot = reading.snapshot("chk-1")
    closing([reading])
    successor = Reading(source(broker, topic), store=reading.store, snapshots=[snapshot])
    closing([successor])
    broker.delete(topic)
    broker.topic(1, topic)
    broker.produce(topic, values(range(1_000, 1_100)))
    with pytest.raises(JobRejected, match=f"topics: topic '{topic}' was deleted and created anew") as error:
        Reading(source(broker, topic), store=reading.store, snapshots=[snapshot])
    assert error.value.code == "topic-created-anew"


def test_a_topic_that_is_made_anew_under_a_job_ends_it_by_name(broker: Broker) -> None:
    clock, topic = ManualClock(1_000_000), broker.topic(1)
    broker.produce(topic, values(range(5)))
    reading = Reading(source(broker, topic, discovery_interval_ms=100), clock=clock)
    read([reading], 5)
    broker.delete(topic)
    broker.topic(1, topic)
    broker.produce(topic, values(range(100, 110)))

    def polls() -> bool:
        clock.advance(100)
        reading.poll()
        return False

    with pytest.raises(JobRejected, match=f"topic '{topic}' was deleted and created anew"):
        until(polls, 30.0)
    closing([reading])


def test_a_topic_that_was_made_anew_after_the_listing_is_refused(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.produce(topic, values(range(5)))
    of = source(broker, topic, start="latest")
    listing = of.list_input()
    broker.delete(topic)
    broker.topic(1, topic)
    with pytest.raises(JobRejected, match=f"topic '{topic}' was deleted and created anew"):
        Reading(source_with_input(of, listing))


def test_an_absent_broker_is_an_outage() -> None:
    """An outage is retried without end and counts as no failure of the job."""
    absent = KafkaSource("127.0.0.1:1", "t", JSON, options={"socket.timeout.ms": "1000"})
    with pytest.raises(EnvironmentFailure, match=r"Kafka at 127\.0\.0\.1:1: topic 't'") as error:
        Reading(absent)
    assert is_outage(error.value)


@pytest.mark.slow
def test_a_broker_that_goes_away_is_reported_by_the_next_look_for_partitions() -> None:
    clock = ManualClock(1_000_000)
    with running_broker() as broker:
        topic = broker.topic(1)
        timeout = {"socket.timeout.ms": "1000"}
        reading = Reading(source(broker, topic, discovery_interval_ms=100, options=timeout), clock=clock)
    clock.advance(100)
    with pytest.raises(EnvironmentFailure, match="topic") as error:
        until(lambda: reading.poll() is not None, 40.0)
    assert is_outage(error.value)
    closing([reading])


def test_malformed_messages_fail_with_their_place_or_are_skipped(broker: Broker) -> None:
    topic = broker.topic(1)
    good = values(range(3))
    broker.produce(topic, [good[0], b"null", None, good[1], b'{"id": "x"}', b'{"id": 1}{"id": 2}', b"\xff{", good[2]])
    broker.produce(topic, [b' {"id":\n 3,\r\n "at": 30 }\n'])
    with pytest.raises(DataRejected, match=rf"topic '{topic}', partition 0, offset 1: the value is not a JSON object"):
        read([Reading(source(broker, topic))], 4)
    reading = Reading(source(broker, topic, on_malformed="skip", metadata=["offset"]))
    rows = list[dict[str, Any]]()

    def has_all() -> bool:
        batch = reading.poll()
        rows.extend(batch.to_pylist() if batch is not None else ())
        return len(rows) >= 4

    until(has_all, 30.0)
    assert [(row["id"], row["kafka_offset"]) for row in rows] == [(0, 0), (1, 3), (2, 7), (3, 8)]
    assert reading.context.counters[MALFORMED_RECORDS] == 5
    closing([reading])


def test_facts_of_a_message_become_columns(broker: Broker) -> None:
    topic = broker.topic(1)
    broker.produce(topic, [b"a", None], key=b"k", timestamp=1_234)
    kafka_source = source(
        broker, topic, format=KafkaBytes(), metadata=["topic", "partition", "offset", "timestamp", "key"],
        event_time="kafka_timestamp",
    )  # fmt: skip
    reading = Reading(kafka_source)
    rows = list[dict[str, Any]]()

    def has_all() -> bool:
        batch = reading.poll()
        if batch is not None:
            assert batch.schema == kafka_source.output_columns()
            rows.extend(batch.to_pylist())
        return len(rows) >= 2

    until(has_all, 30.0)
    moment = datetime.fromtimestamp(1.234, UTC)
    shared = {"kafka_topic": topic, "kafka_partition": 0, "kafka_timestamp": moment, "kafka_key": b"k"}
    assert rows == [{"value": b"a", "kafka_offset": 0, **shared}, {"value": None, "kafka_offset": 1, **shared}]
    assert reading.reader.watermark() == 1_233
    closing([reading])


FIND_COORDINATOR = 10


def swallow_coordinator(api: int, body: bytes) -> bytes | None:
    return b"" if api == FIND_COORDINATOR else None


@pytest.mark.timeout(30)
def test_a_reader_closes_while_the_coordinator_of_its_group_is_away(proxy: Proxy) -> None:
    """The `close` of librdkafka would wait 45 s for a commit under way."""
    topic = proxy.broker.topic(1)
    proxy.broker.produce(topic, values(range(3)))
    reading = Reading(source(proxy.broker, topic, group=f"g-{random.random()}"))
    proxy.rule = swallow_coordinator
    read([reading], 3)
    reading.snapshot("chk-1")
    reading.reader.checkpoint_completed(permit_from_master("job", Token(1), CheckpointId(1)))
    closing([reading])


def test_a_connection_that_is_lost_at_the_start_is_an_outage(proxy: Proxy) -> None:
    """librdkafka then says that the partitions, which it has listed a moment ago, are unknown."""
    topic = proxy.broker.topic(1)
    proxy.rule = swallow_coordinator
    failures = list[Exception]()
    for _ in range(20):
        try:
            closing([Reading(source(proxy.broker, topic, group=f"g-{random.random()}"))])
        except WeirError as error:
            failures.append(error)
    assert failures, "some starts must lose their connection"
    assert [str(error) for error in failures if not is_outage(error)] == []


def test_a_completed_checkpoint_shows_its_offsets_in_the_group_and_no_start_reads_them(broker: Broker) -> None:
    topic, group = broker.topic(1), f"g-{random.random()}"
    broker.produce(topic, values(range(8)))
    reading = Reading(source(broker, topic, group=group))
    read([reading], 8)
    reading.snapshot("chk-1")
    reading.reader.checkpoint_completed(permit_from_master("job", Token(1), CheckpointId(1)))
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    query = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])

    admin = broker.admin()

    def offset() -> int:
        answer = admin.list_consumer_group_offsets([query])[group].result(30)
        return int(answer.topic_partitions[0].offset)

    until(lambda: offset() == 8, 30.0)
    closing([reading])
    successor = Reading(source(broker, topic, group=group))
    assert len(read([successor], 8)) == 8
    closing([successor])


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"servers": "nowhere"}, "servers: must be host:port"),
    ({"topics": ()}, "topics: must name"),
    ({"topics": "a b"}, "topics: 'a b' is no name"),
    ({"topics": ("a", "a")}, "topics: names a topic twice"),
    ({"start": "first"}, "start: must be"),
    ({"start": datetime(2026, 1, 1)}, "start: must have a time zone"),  # noqa: DTZ001
    ({"event_time": "when"}, "event_time"),
    ({"metadata": ["headers"]}, "metadata: must be some of"),
    ({"format": KafkaJson()}, "format: a source needs the columns"),
    ({"idle_after_ms": 0}, "idle_after_ms"),
    ({"on_malformed": "drop"}, "on_malformed"),
    ({"options": {"group.id": "x"}}, r"options\.group\.id: is set by the connector"),
    ({"options": {"sasl.password": "hunter2"}}, r"options\.sasl\.password: is a secret: write \$\{secret:NAME\}"),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_bad_settings_are_named(change: dict[str, Any], message: str) -> None:
    settings_: dict[str, Any] = {"servers": "h:1", "topics": "t", "format": JSON} | change
    with pytest.raises(JobRejected, match=message) as error:
        KafkaSource(**settings_).check()
    assert "hunter2" not in str(error.value)
