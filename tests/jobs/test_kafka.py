"""Kafka → window → Kafka as whole jobs: ends of slots at every phase of the sink, stops, rescales; exact."""

import json
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.kafka.formats import KafkaJson
from runtime.connectors.kafka.sink import KafkaSink
from runtime.connectors.kafka.source import KafkaSource
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count, Sum
from runtime.ports import OperatorContext, Sink, SinkCommitter, SinkWriter
from tests.apache_kafka import APACHE, ApacheKafka, broker_of
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb
from tests.jobs.live import FAST, Run, running
from tests.jobs.mortal import Deaths, Mortal
from tests.jobs.numbers import committed
from tests.kafka import Broker
from tests.kafka_proxy import serial_broker

PARTITIONS = 4
SIZE_MS = 100
SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("at", pa.int64()), pa.field("value", pa.int64())])
AGAIN = FixedDelay(attempts=100, delay_ms=30)
NEVER = FixedDelay(attempts=0, delay_ms=100)
PHASES = ("prepare", "prepared", "commit", "committed")


@pytest.fixture(scope="module")
def small_broker() -> Iterator[Broker]:
    with serial_broker() as server:
        yield server.broker


@pytest.fixture(scope="module", params=["small", APACHE])
def broker(request: pytest.FixtureRequest) -> Broker:
    return broker_of(request)


class MortalWriter(SinkWriter):
    def __init__(self, writer: SinkWriter, mortal: Mortal) -> None:
        self._writer, self._mortal = writer, mortal

    def open(self, context: OperatorContext) -> None:
        self._writer.open(context)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._mortal.at("prepare")
        prepared = self._writer.prepare(checkpoint)
        if prepared:
            self._mortal.at("prepared")
        return prepared

    def close(self) -> None:
        self._writer.close()


class MortalCommitter(SinkCommitter):
    def __init__(self, committer: SinkCommitter, mortal: Mortal) -> None:
        self._committer, self._mortal = committer, mortal

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        self._mortal.at("commit")
        count = self._committer.commit(permit, committables)
        self._mortal.at("committed")
        return count

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        """By the job master, which is not to end."""
        self._committer.commit_epoch(permit, committables)

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        return self._committer.clean(job, uid, token, keep)


@dataclass(frozen=True)
class MortalSink:
    sink: Sink
    deaths: Deaths
    guarantee = "exactly-once"

    def writer(self) -> SinkWriter:
        return MortalWriter(self.sink.writer(), Mortal(self.deaths, "out"))

    def committer(self) -> SinkCommitter:
        return MortalCommitter(self.sink.committer(), Mortal(self.deaths, "out"))

    def check(self) -> None:
        self.sink.check()


@dataclass
class Topics:
    """Input that the test adds to, and the answer to all of it."""

    broker: Broker
    deaths: Deaths
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.input, self.output = self.broker.topic(PARTITIONS), self.broker.topic(3)
        self.rows: list[tuple[int, int, int]] = []

    def add(self, count: int) -> None:
        """Rows whose times lie up to 4 ms apart, evenly over the partitions."""
        first = len(self.rows) // PARTITIONS
        for partition in range(PARTITIONS):
            new = [(number * 7 % 5, number * 4 + partition, number) for number in range(first, first + count)]
            texts = [json.dumps(dict(zip(SCHEMA.names, row, strict=True))).encode() for row in new]
            self.broker.produce(self.input, texts, partition)
            self.rows += new

    def job(self, parallelism: int) -> CompiledJob:
        flow = Dataflow("kafka")
        source = KafkaSource(
            self.broker.servers,
            self.input,
            KafkaJson(SCHEMA),
            event_time="at",
            max_disorder_ms=4,
            options=self.options,
        )
        counted = flow.source("rows", source).key_by("key").window(
            "windows", timedelta(milliseconds=SIZE_MS), "at", {"n": Count(), "total": Sum("value")}
        )  # fmt: skip
        sink = KafkaSink(self.broker.servers, self.output, KafkaJson(), key="key", options=self.options)
        counted.sink("out", MortalSink(sink, self.deaths))
        return flow.compile(parallelism)

    def answer(self, *, closed_only: bool) -> Counter[tuple[int, int, int, int]]:
        """(key, window, count, sum): each as often as it must be in the output."""
        counts: dict[tuple[int, int], list[int]] = {}
        for key, at, value in self.rows:
            counts.setdefault((key, at // SIZE_MS), []).append(value)
        newest = max(at for _, at, _ in self.rows) - 2 * PARTITIONS
        return Counter(
            (key, window, len(values), sum(values))
            for (key, window), values in counts.items()
            if not closed_only or (window + 1) * SIZE_MS <= newest
        )

    def committed(self) -> Counter[tuple[int, int, int, int]]:
        self.broker.settle(self.output, 3)
        rows = [json.loads(value) for value in self.broker.committed_values(self.output, 3)]
        return Counter((row["key"], _window(row["window_start"]), row["n"], row["total"]) for row in rows)

    def wait(self, run: Run) -> None:
        """Until every window that must be closed is committed."""
        rows = self.answer(closed_only=True)
        run.wait_for(lambda: not rows - self.committed())


def _window(start: str) -> int:
    return int(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp() * 1_000) // SIZE_MS


def test_windows_from_kafka_to_kafka_are_exact(tmp_path: Path, jobs: Jobs, broker: Broker) -> None:
    """S1-06, S1-25: ends of slots at each phase of the sink, by SIGKILL on Spark; 2 → 3 → 1."""
    deaths = Deaths()
    topics = Topics(broker, deaths)
    topics.add(60)
    with jobs.running(topics.job(2), tmp_path / "state", restart=AGAIN) as run:
        topics.wait(run)
        for phase in PHASES:
            before = run.records.token
            deaths.add(f"out: {phase}")
            topics.add(60)
            run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            topics.wait(run)
        savepoint = run.end("stop")
    for parallelism, kind in ((3, "stop"), (1, "drain")):
        records = MemoryRunStore(token=Token(run.records.token + 10), restore_from=savepoint)
        topics.add(60)
        with jobs.running(topics.job(parallelism), tmp_path / "state", records, restart=AGAIN) as run:
            topics.wait(run)
            savepoint = run.end(kind)
    assert deaths.waiting == []
    assert topics.committed() == topics.answer(closed_only=False)


@pytest.mark.slow
@pytest.mark.long(seconds=40)
def test_a_node_that_is_killed_and_returns_is_waited_out(tmp_path: Path, apache_kafka: ApacheKafka) -> None:
    """Its coordinators load, and its leaders are elected, after it listens. None of this counts as a failure."""
    topics = Topics(apache_kafka.broker, Deaths(), options={"socket.timeout.ms": "2000"})
    topics.add(60)
    with running(topics.job(2), tmp_path / "state", restart=NEVER) as run:
        topics.wait(run)
        for number in (signal.SIGKILL, signal.SIGTERM):
            token = run.records.token
            apache_kafka.stop(number)
            run.wait_for(lambda token=token: run.records.token > token)  # type: ignore[misc]
            apache_kafka.start()
            topics.add(60)
            topics.wait(run)
        run.end("drain")
    assert topics.committed() == topics.answer(closed_only=False)


def test_rows_before_the_first_checkpoint_are_read_again_by_a_source_that_began_at_the_newest(
    tmp_path: Path, broker: Broker
) -> None:
    """The offsets of the first start are those of the job master, which outlives the attempt."""
    topic, output, bomb = broker.topic(2), tmp_path / "out", Bomb()
    broker.produce(topic, _messages(range(-5, 0)))
    flow = Dataflow("latest")
    rows = flow.source("rows", KafkaSource(broker.servers, topic, KafkaJson(SCHEMA), start="latest"))
    rows.map_batches("bomb", bomb).sink("out", ParquetSink(str(output)))
    settings = replace(FAST, interval_ms=None)
    with running(flow.compile(2), tmp_path / "state", settings=settings, restart=AGAIN) as run:
        run.wait_for(lambda: run.records.state is RunState.RUNNING)
        broker.produce(topic, _messages(range(60)), 0)
        broker.produce(topic, _messages(range(60, 100)), 1)
        run.wait_for(lambda: run.operator("bomb").get("records_in", 0) == 100)
        bomb.arm()
        broker.produce(topic, _messages(range(100, 101)))
        run.wait_for(lambda: run.records.attempts)
        broker.produce(topic, _messages(range(101, 110)))
        run.wait_for(lambda: run.operator("out").get("open_results", {}).get("rows") == 110)
        run.end("stop")
    assert sorted(row["value"] for row in committed(output)) == list(range(110))


def test_the_first_offsets_of_a_source_that_began_at_the_newest_are_soon_in_a_checkpoint(
    tmp_path: Path, broker: Broker
) -> None:
    """A new job master does not know them. The next checkpoint begins after an interval."""
    flow = Dataflow("latest")
    source = KafkaSource(broker.servers, broker.topic(1), KafkaJson(SCHEMA), start="latest")
    flow.source("rows", source).sink("out", DiscardSink())
    hour = replace(FAST, interval_ms=3_600_000)
    with running(flow.compile(1), tmp_path / "state", settings=hour) as run:
        run.wait_for(lambda: run.manifests)
        run.end("stop")


def _messages(values: range) -> list[bytes | None]:
    return [json.dumps({"key": 0, "at": 0, "value": value}).encode() for value in values]
