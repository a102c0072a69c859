"""Epochs of a write-ahead sink as transactions of a real broker: once each, whatever is repeated or interrupted."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from runtime.connectors.kafka.epochs import KafkaEpochs
from runtime.connectors.kafka.formats import KafkaBytes, KafkaJson, KafkaText, key_bytes
from runtime.connectors.kafka.rows import HELD_MESSAGES
from runtime.connectors.kafka.sink import KafkaSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway
from runtime.ports import OutputEpoch, StageFolders
from tests.contracts.test_sinks import context
from tests.kafka import Broker

UNIQUE_SOURCE = iter(range(1_000_000))


@pytest.fixture
def epoch() -> OutputEpoch:
    """The first epoch of a sequence that no other test has."""
    return OutputEpoch(f"{os.getpid():x}{next(UNIQUE_SOURCE):x}", 1, "job 1", "out", 5, 4)


def sink(broker: Broker, topic: str) -> KafkaSink:
    return KafkaSink(broker.servers, topic, KafkaText("n"), commit="staged", options={"socket.timeout.ms": "1000"})


def messages(*numbers: int) -> pa.RecordBatch:
    """Messages as a slot holds them."""
    values = [str(number).encode() for number in numbers]
    return pa.RecordBatch.from_pydict({"weir_key": [None] * len(values), "weir_value": values}, HELD_MESSAGES)


def visible(broker: Broker, topic: str) -> list[int]:
    """The rows of committed transactions, in the order of the log."""
    return [int(value) for value in broker.committed_values(topic)]


def is_stable(broker: Broker, topic: str) -> bool:
    return broker.end(topic) == broker.end(topic, stable=False)


def test_an_epoch_is_written_once_however_often_it_is_repeated(broker: Broker, epoch: OutputEpoch) -> None:
    """S1-06: by any master, also one whose epochs lie far behind. The rows keep their order."""
    topic = broker.topic()
    for _ in range(2):
        KafkaEpochs(sink(broker, topic)).write_epoch(epoch, [messages(1, 2), messages(3, 4)])
    target = KafkaEpochs(sink(broker, topic))
    target.write_epoch(replace(epoch, number=2), [messages(5)])
    target.write_epoch(epoch, [messages(1, 2), messages(3, 4)])
    assert visible(broker, topic) == [1, 2, 3, 4, 5]
    target.write_epoch(replace(epoch, source=epoch.source + "f"), [messages(6)])
    assert visible(broker, topic) == [1, 2, 3, 4, 5, 6]
    assert is_stable(broker, topic)


def test_an_interrupted_epoch_is_invisible_and_blocks_no_consumer(broker: Broker, epoch: OutputEpoch) -> None:
    topic = broker.topic()
    target = KafkaEpochs(sink(broker, topic))

    def lost() -> Iterator[pa.RecordBatch]:
        yield messages(1, 2)
        raise FileNotFoundError("a file of the epoch")

    with pytest.raises(FileNotFoundError):
        target.write_epoch(epoch, lost())
    assert visible(broker, topic) == []
    assert is_stable(broker, topic)
    target.write_epoch(epoch, [messages(1, 2)])
    assert visible(broker, topic) == [1, 2]


def test_two_masters_that_write_the_same_epoch_write_it_once(broker: Broker, epoch: OutputEpoch) -> None:
    """A zombie in the middle of an epoch is fenced by the master that has taken over."""
    topic = broker.topic()
    zombie, master = KafkaEpochs(sink(broker, topic)), KafkaEpochs(sink(broker, topic))

    def interleaved() -> Iterator[pa.RecordBatch]:
        yield messages(1, 2)
        master.write_epoch(epoch, [messages(1, 2), messages(3, 4)])
        yield messages(3, 4)

    with pytest.raises(EnvironmentFailure):
        zombie.write_epoch(epoch, interleaved())
    zombie.write_epoch(epoch, [messages(1, 2), messages(3, 4)])
    assert visible(broker, topic) == [1, 2, 3, 4]
    assert is_stable(broker, topic)


@pytest.mark.parametrize(
    ("column", "key", "format"),
    [
        (pa.array([0, 2**63 - 1], pa.timestamp("us")), None, KafkaJson()),
        (pa.array([[1]]), None, KafkaText("n")),
        (pa.array([1]), None, KafkaBytes("n")),
        (pa.array([{"a": 1}]), "n", KafkaJson()),
    ],
)
def test_rows_that_are_no_messages_are_refused_when_they_arrive(
    tmp_path: Path, column: pa.Array, key: str | None, format: Any
) -> None:
    """By the slot, before their checkpoint. After it, no restore could get past them."""
    of = KafkaSink("127.0.0.1:1", "t", format, key=key, commit="staged", folder=str(tmp_path / "held"))
    writer = of.writer()
    writer.open(context("7", 1, "out", 0))
    with pytest.raises(DataRejected, match="topic 't': the rows cannot be written as messages"):
        writer.write(pa.RecordBatch.from_arrays([column], names=["n"]))
    writer.close()


class AwayFormat(KafkaJson):
    def encoder(self, topic: str) -> Any:
        raise TargetAway("the registry is away")


@pytest.mark.parametrize("key", [None, "k"])
def test_rows_are_held_as_messages(broker: Broker, tmp_path: Path, key: str | None) -> None:
    """A delivery depends on the broker only."""
    topic = broker.topic()
    of = replace(sink(broker, topic), key=key, format=KafkaJson(), folder=str(tmp_path / "held"))
    writer = of.writer()
    writer.open(context("7", 1, f"out {topic}", 0))
    writer.write(pa.RecordBatch.from_pydict({"n": [1, 2], "k": ["a", None]}))
    permit = permit_from_master("7", Token(1), CheckpointId(1))
    replace(of, format=AwayFormat()).committer().commit_epoch(permit, writer.prepare(1))
    writer.close()
    assert [json.loads(value) for value in broker.committed_values(topic)] == [{"n": 1, "k": "a"}, {"n": 2, "k": None}]
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "keys", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.key() for message in consumer.consume(2, 30)] == [key and b"a", None]
    consumer.close()


def test_keys_of_fixed_size_are_bytes() -> None:
    assert key_bytes(pa.array([b"\xff\x00", None], pa.binary(2))) == [b"\xff\x00", None]


def test_a_missing_topic_is_named(broker: Broker, epoch: OutputEpoch) -> None:
    with pytest.raises(JobRejected, match="has no topic 'absent'"):
        KafkaEpochs(sink(broker, "absent")).write_epoch(epoch, [messages(1)])


def test_settings_are_checked_with_and_without_a_folder_of_the_run(tmp_path: Path) -> None:
    staged = KafkaSink("broker:9092", "t", KafkaText("n"), commit="staged", options={"sasl.password": "${secret:p}"})
    assert staged.guarantee == "exactly-once"
    assert staged.output_expires_ms is None
    with pytest.raises(JobRejected, match="folder"):
        staged.check()
    replace(staged, folder=str(tmp_path)).check()
    bound = staged.bind("out", StageFolders(str(tmp_path), streams=str(tmp_path)))
    bound.check()
    with pytest.raises(JobRejected, match="transaction_timeout_ms"):
        replace(staged, transaction_timeout_ms=1).bind("out", StageFolders("", streams=str(tmp_path))).check()
    with pytest.raises(JobRejected, match="staged"):
        replace(staged, commit="immediate", folder=str(tmp_path)).check()
    assert "secret" not in repr(bound)
