"""Errors that Apache Kafka gives and the small server does not, by the name that a person needs."""

import struct
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.kafka.formats import KafkaBytes
from runtime.connectors.kafka.sink import KafkaSink
from runtime.core.job.ids import Token
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, is_outage
from runtime.ports import SinkWriter
from tests.apache_kafka import ApacheKafka, NoBroker, running_apache_kafka
from tests.connectors.kafka.test_sink import sink, visible
from tests.connectors.two_phases import commit, prepared, rows, writer
from tests.kafka import Broker
from tests.waiting import until

pytestmark = pytest.mark.slow
EXPIRY_MS = 10_000
OFFSET_COMMIT = 8
COORDINATOR_LOAD_IN_PROGRESS = 14
NOT_COORDINATOR = 16


@pytest.fixture
def job() -> str:
    return f"job-{time.monotonic_ns()}"


@pytest.fixture
def broker(apache_kafka: ApacheKafka) -> Broker:
    return apache_kafka.broker


@pytest.mark.parametrize("step", ["write", "flush", "prepare"])
def test_a_fenced_producer_is_named_whichever_call_meets_its_error(step: str, broker: Broker, job: str) -> None:
    """librdkafka gives the error to the next call that polls, and Python loses it if a delivery is reported too."""
    of = sink(broker, broker.topic())
    for token in range(2, 8, 2):
        zombie = writer(of, job=job, token=token)
        zombie.write(rows(1))
        if step == "prepare":
            zombie._current.rows.flush()  # type: ignore[attr-defined]
        of.committer().clean(job, "out", Token(token + 1), [])
        with pytest.raises(EnvironmentFailure, match="the producer is fenced: another one has its transactional id"):
            _write_and_prepare(zombie, step)
        zombie.close()


def _write_and_prepare(zombie: SinkWriter, step: str) -> None:
    for number in range(0 if step == "prepare" else 3):
        zombie.write(rows(number))
        time.sleep(0.3 if step == "write" else 0.0)
    zombie.prepare(1)


@pytest.mark.long(seconds=30)
def test_a_loss_names_what_is_committed_and_a_way_without_doubles(broker: Broker, job: str) -> None:
    """The broker aborts prepared transactions after their time-out."""
    topic, other_topic = broker.topic(), broker.topic()
    of, other = (sink(broker, each, transaction_timeout_ms=EXPIRY_MS) for each in (topic, other_topic))
    before = writer(of, job=job)
    assert commit(of, *prepared(before, 1, 1), job=job, checkpoint=1) == 1
    none_committed = prepared(before, 2, 2, 3) + prepared(writer(of, job=job, index=1), 2, 4)
    some_committed = [*prepared(writer(other, job=job), 2, 2), *prepared(writer(other, job=job, index=1), 2, 3)]
    assert commit(other, some_committed[0], job=job, checkpoint=2) == 1
    until(lambda: all(broker.end(each) == broker.end(each, stable=False) for each in (topic, other_topic)), 60.0)
    with pytest.raises(JobRejected, match=r"0 of 2 transactions of this checkpoint are committed") as loss:
        commit(of, *none_committed, job=job, checkpoint=2)
    assert loss.value.code == "transaction-lost"
    with pytest.raises(JobRejected, match=r"1 of 2 transactions .* are committed\. .* with another topic"):
        commit(other, *some_committed, job=job, checkpoint=2)
    again = writer(of, job=job, token=2)  # a restore of checkpoint 1 writes the rows of checkpoint 2 again
    of.committer().clean(job, "out", Token(2), [])
    assert commit(of, *prepared(again, 2, 2, 3, 4), job=job, token=2, checkpoint=2) == 1
    assert visible(broker, topic) == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["transaction", "immediate"])
def test_a_row_above_the_limit_of_the_topic_is_named_at_once(how: Any, apache_kafka: ApacheKafka, job: str) -> None:
    """Its own error precedes that of the rows behind it, which librdkafka refuses for the state of the producer."""
    topic = apache_kafka.broker.topic()
    apache_kafka.broker.configure(topic, "max.message.bytes", "1000")
    of = KafkaSink(apache_kafka.broker.servers, topic, KafkaBytes("n"), key="k", commit=how)
    sink_writer = writer(of, job=job)

    def write(*sizes: int) -> None:
        keys = [f"key {size}" for size in sizes]
        sink_writer.write(pa.RecordBatch.from_pydict({"n": [b"n" * size for size in sizes], "k": keys}))

    def refused() -> bool:
        write(1)
        return False

    write(1, 5_000, 2)
    began = time.monotonic()
    problem = rf"topic '{topic}', a message of 5,008 bytes with key b'key 5000', or its batch: .*MSG_SIZE_TOO_LARGE"
    with pytest.raises(DataRejected, match=rf"{problem}.*raise max\.message\.bytes"):
        until(refused, 5.0)
    assert time.monotonic() - began < 5.0
    sink_writer.close()


def test_small_rows_fit_into_a_topic_with_a_small_limit_by_a_smaller_batch(apache_kafka: ApacheKafka, job: str) -> None:
    topic = apache_kafka.broker.topic()
    apache_kafka.broker.configure(topic, "max.message.bytes", "1000")
    for options, fits in (({}, False), ({"batch.size": "800"}, True)):
        sink_writer = writer(sink(apache_kafka.broker, topic, options=options), job=f"{job}-{fits}")
        sink_writer.write(rows(*range(500)))
        if fits:
            assert sink_writer.prepare(1)
        else:
            with pytest.raises(DataRejected, match=r"If each row is small, lower the option batch\.size"):
                sink_writer.prepare(1)
        sink_writer.close()


@pytest.mark.long(seconds=30)
def test_a_new_node_that_creates_topics_is_waited_for_and_creates_no_deleted_topic(tmp_path: Path) -> None:
    """Its first requests make the topics of offsets and transactions; it answers them by NOT_COORDINATOR.

    Brokers create topics that a producer asks for, by default. The sink would go on into an empty topic.
    """
    try:
        with running_apache_kafka(tmp_path, {"auto.create.topics.enable": "true"}) as node:
            topic = node.broker.topic()
            for how in ("transaction", "immediate"):
                sink_writer = _checked_writer(node.broker, topic, how)
                node.broker.delete(topic)
                with pytest.raises((EnvironmentFailure, JobRejected), match=f"topic '{topic}'"):
                    _write_checkpoints(sink_writer, 20)
                sink_writer.close()
                assert topic not in node.broker.admin().list_topics(timeout=30).topics
                node.broker.topic(1, topic)
    except NoBroker as error:
        pytest.skip(str(error))


def _checked_writer(broker: Broker, topic: str, how: str) -> SinkWriter:
    """A writer whose first checkpoint is committed."""
    of = sink(broker, topic, commit=how, options={"socket.timeout.ms": "5000"})
    sink_writer = writer(of, job=how)
    committables = prepared(sink_writer, 1, 1)
    assert commit(of, *committables, job=how) == len(committables)
    assert visible(broker, topic) == [1]
    return sink_writer


def _write_checkpoints(sink_writer: SinkWriter, count: int) -> None:
    for checkpoint in range(2, 2 + count):
        prepared(sink_writer, checkpoint, checkpoint)
        time.sleep(0.05)


@pytest.mark.long(seconds=30)
@pytest.mark.parametrize(("count", "waits_it_out"), [(3, True), (1_000, False)])
def test_a_group_whose_coordinator_loads_or_moves_is_asked_again(
    count: int, waits_it_out: bool, apache_kafka: ApacheKafka, job: str
) -> None:
    """A node that has just started answers so; a proxy repeats its answers. Behind them is an outage, no failure."""
    topic, codes = apache_kafka.proxy.broker.topic(), iter([COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR] * count)
    name = bytes([len(topic) + 1]) + topic.encode()

    def rule(api: int, body: bytes) -> bytes | None:
        code = next(codes, 0) if api == OFFSET_COMMIT else 0
        return struct.pack(">xi", 0) + b"\2" + name + struct.pack(">Bihxxx", 2, 0, code) if code else None

    of = sink(apache_kafka.proxy.broker, topic, options={"socket.timeout.ms": "3000"})
    apache_kafka.proxy.rule = rule
    try:
        if waits_it_out:
            assert prepared(writer(of, job=job), 1, 1)
        else:
            with pytest.raises(EnvironmentFailure, match=r"COORDINATOR|_WAIT_COORD|_TIMED_OUT") as outage:
                writer(of, job=job)
            assert is_outage(outage.value)
    finally:
        apache_kafka.proxy.rule = lambda api, body: None
