"""Subtasks keep their state while sources of files and topics are read again, and a changed input is noticed."""

import json
from collections import Counter as Multiset
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import weir
from runtime.connectors.kafka.formats import Decode, Encode, KafkaJson
from runtime.core.job.restart_strategy import ROWS_NOT_REPEATED_CODE, FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.plan import CompiledJob
from runtime.ports import Source
from runtime.task import task
from tests.contracts.files import drop
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb
from tests.jobs.live import Run, running
from tests.jobs.numbers import committed
from tests.jobs.test_partial_restart import fail, pids
from tests.kafka import QUIET, Broker
from tests.kafka_proxy import serial_broker
from tests.shared import Shared

SLOTS = 3
AGAIN = FixedDelay(attempts=100, delay_ms=30)
ROWS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
SECONDS = CoordinatorSettings(interval_ms=1_000, min_pause_ms=0)  #: so that rows are repeated
NO_CHECKPOINT = CoordinatorSettings(interval_ms=None)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with serial_broker() as server:
        yield server.broker


def counts_of(source: Source, bomb: Bomb, output: Path) -> CompiledJob:
    flow = weir.Dataflow("counts")
    rows = flow.source("rows", source).map_batches("bomb", bomb, repeatable=True)
    counted = rows.key_by("key").aggregate("counts", {"n": weir.Count(), "total": weir.Sum("value")})
    counted.sink("out", weir.ParquetSink(str(output)))
    return flow.compile(SLOTS)


def is_exact(values: list[int], output: Path) -> bool:
    """Whether the last count and sum of each key are right, and none was written twice."""
    updates = [(row["key"], row["n"], row["total"]) for row in committed(output)]
    assert len({update[:2] for update in updates}) == len(updates), "an update was written twice"
    last = {key: (n, total) for key, n, total in sorted(updates)}
    counts, totals = Multiset(map(key_of, values)), Multiset[int]()
    for value in values:
        totals[key_of(value)] += value
    return last == {key: (counts[key], totals[key]) for key in counts}


def key_of(value: int) -> int:
    return value % 11


def lines(values: range) -> list[bytes]:
    return [json.dumps({"key": key_of(value), "value": value}).encode() for value in values]


def files(folder: Path) -> weir.DirectorySource:
    return weir.DirectorySource(str(folder), weir.JsonLinesFormat(ROWS), discovery_interval_ms=50)


def write_file(folder: Path, name: str, values: range) -> range:
    drop(folder, name, b"".join(line + b"\n" for line in lines(values)))
    return values


def read_rows(run: Run) -> int:
    return int(run.operator("counts").get("records_in", 0))


def test_a_watched_folder_whose_files_come_in_another_order(tmp_path: Path, jobs: Jobs) -> None:
    """S4-45: files of later names were read first, before a slot is killed; then all are listed at once."""
    folder, output, bomb, values = tmp_path / "in", tmp_path / "out", Bomb(), list[int]()
    folder.mkdir()
    numbers = count()

    def add(name: str, rows: int = 50) -> None:
        first = next(numbers) * 1_000
        values.extend(write_file(folder, name, range(first, first + rows)))

    for number in range(6):
        add(f"m{number}")
    with jobs.running(
        counts_of(files(folder), bomb, output), tmp_path / "state", settings=SECONDS, restart=AGAIN
    ) as run:
        run.wait_for(lambda: is_exact(values, output) and len(pids(run)) == SLOTS)
        for token in (2, 3):
            run.checkpoints(1)
            read = read_rows(run)
            for number, name in enumerate("zyx", 1):  # by falling names, each read before the next one appears
                add(f"{name}{9 - token}")
                run.wait_for(lambda rows=read + 50 * number: read_rows(run) >= rows)  # type: ignore[misc]
            for number in range(3):
                add(f"a{9 - token}{number}")
            fail(run, bomb, slot=1)
            add(f"b{token}")  # threads may have read all rows
            run.wait_for(lambda token=token: run.records.token >= token and len(pids(run)) == SLOTS)  # type: ignore[misc]
            run.wait_for(lambda: is_exact(values, output))
        run.end("drain")
    assert is_exact(values, output)
    assert [len(failure["kept_slots"]) for failure in run.records.details] == [SLOTS - 1] * 2


def replace_file(folder: Path) -> range:
    return write_file(folder, "b", range(2_000, 2_050))  # as many rows of each key, and bytes


def delete_file(folder: Path) -> range:
    (folder / "b").unlink()
    return range(0)


@pytest.mark.parametrize("change", [replace_file, delete_file])
def test_a_watched_file_that_has_changed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], range]
) -> None:
    """S4-45: survivors hold rows of a file that is another one at the second reading. All subtasks restart."""
    monkeypatch.setattr(task, "MAX_SEARCH_MS", 300)
    folder, output, bomb = tmp_path / "in", tmp_path / "out", Bomb()
    values = [*write_file(folder, "a", range(50))]
    with running(
        counts_of(files(folder), bomb, output), tmp_path / "state", settings=NO_CHECKPOINT, restart=AGAIN
    ) as run:
        run.wait_for(lambda: read_rows(run) == 50)
        write_file(folder, "b", range(1_010, 1_060))
        run.wait_for(lambda: read_rows(run) == 100)
        bomb.arm()
        values += change(folder)
        numbers = count(3_000)

        def is_noticed() -> bool:
            """Also while there are always other rows to read."""
            values.extend(write_file(folder, f"c{(number := next(numbers))}", range(number, number + 1)))
            return len(run.records.details) == 2

        run.wait_for(is_noticed)
        run.wait_for(lambda: read_rows(run) == len(values))
        run.end("drain")
    assert is_exact(values, output)
    first, second = run.records.details
    assert len(first["kept_slots"]) == SLOTS - 1
    assert second["code"] == ROWS_NOT_REPEATED_CODE


def produce(broker: Broker, topic: str, values: range, partition: int) -> range:
    """In a transaction of its own."""
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": f"{topic}-{partition}", **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    for line in lines(values):
        producer.produce(topic, line, partition=partition)
    assert producer.flush(30) == 0
    producer.commit_transaction(30)
    return values


def test_a_topic_with_transactions(tmp_path: Path, jobs: Jobs, broker: Broker) -> None:
    """S4-45: markers of transactions use offsets; the polls of the second reading have other sizes."""
    topic, output, bomb, values = broker.topic(4), tmp_path / "out", Bomb(), list[int]()
    starts = count(step=1_000)

    def add() -> None:
        for partition in range(4):
            values.extend(produce(broker, topic, range(first := next(starts), first + 30), partition))
            values.extend(produce(broker, topic, range(first := next(starts), first + 20), partition))

    add()
    job = counts_of(weir.KafkaSource(broker.servers, topic, KafkaJson(ROWS)), bomb, output)
    with jobs.running(job, tmp_path / "state", settings=SECONDS, restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(values, output) and len(pids(run)) == SLOTS)
        for token in (2, 3):
            run.checkpoints(1)
            read = read_rows(run)
            add()
            run.wait_for(lambda read=read: read_rows(run) > read)  # type: ignore[misc]
            fail(run, bomb, slot=1)
            values.extend(produce(broker, topic, range(first := next(starts), first + 5), 0))  # else no row may be left
            run.wait_for(lambda token=token: run.records.token >= token and len(pids(run)) == SLOTS)  # type: ignore[misc]
            run.wait_for(lambda: is_exact(values, output))
        run.end("drain")
    assert is_exact(values, output)
    assert [len(failure["kept_slots"]) for failure in run.records.details] == [SLOTS - 1] * 2


class Skipping(Shared):
    """A JSON format that finds some messages malformed from some moment on, so that the source skips them."""

    def __init__(self) -> None:
        self.skipped = list[bytes]()

    def check(self) -> None:
        return None

    def columns(self) -> pa.Schema:
        return ROWS

    def encoder(self, topic: str) -> Encode:
        raise NotImplementedError

    def decoder(self) -> Decode:
        decode = KafkaJson(ROWS).decoder()
        return lambda values: decode([None if value in self.skipped else value for value in values])


def test_messages_that_are_gone_at_the_second_reading_are_noticed(tmp_path: Path, broker: Broker) -> None:
    """S4-45: as by compaction. The offsets of the other messages stay, so no row is dropped in its place."""
    topic, output, bomb, kind = broker.topic(1), tmp_path / "out", Bomb(), Skipping()
    source = weir.KafkaSource(broker.servers, topic, kind, on_malformed="skip")
    values = [*produce(broker, topic, range(50), 0)]
    with running(counts_of(source, bomb, output), tmp_path / "state", settings=NO_CHECKPOINT, restart=AGAIN) as run:
        values += produce(broker, topic, range(100, 150), 0)
        run.wait_for(lambda: read_rows(run) == 100)
        kind.skipped += lines(range(110, 121))  # one of each key: no survivor is without
        del values[60:71]
        bomb.arm()
        values += produce(broker, topic, range(200, 211), 0)  # as many rows of each key
        run.wait_for(lambda: run.records.token == 2 and read_rows(run) > 0)
        run.ask("savepoint")  # the counts are compared before its barrier
        run.wait_for(lambda: len(run.records.details) == 2 and read_rows(run) == len(values))
        run.end("drain")
    assert is_exact(values, output)
    assert [failure.get("code") for failure in run.records.details][1] == ROWS_NOT_REPEATED_CODE
