"""A history and then a live part: each row once across cuts and rescales, the switch, event time, refusals."""

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weir
from runtime.connectors.sources.hybrid import HybridSource, then
from runtime.errors import DataRejected, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Source
from tests.contracts.files import Reading, drop
from tests.example_counts import examples
from tests.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64())])
CSV = weir.CsvFormat(SCHEMA)
START_MS = 1_000_000
SPLITS = 5  #: of `Listed`


def csv(ids: range) -> str:
    return "id,at\n" + "".join(f"{number},{number * 10}\n" for number in ids)


def write_files(folder: Path, ids: range, random_: random.Random) -> None:
    """The ids in order, in files of random sizes."""
    folder.mkdir(exist_ok=True)
    at = ids.start
    while at < ids.stop:
        stop = min(at + random_.randrange(1, 30), ids.stop)
        drop(folder, f"{at:06}.csv", csv(range(at, stop)))
        at = stop


@dataclass
class Listed:
    """A live source with splits in list state, whose first row is that of its listing."""

    rows: int
    counter: list[int] = field(default_factory=lambda: [0])  #: rises at each listing, as the newest offset does
    first: int | None = None
    bounded = False
    guarantee = "exactly-once"
    has_event_time = False

    def output_columns(self) -> pa.Schema:
        return SCHEMA

    def list_input(self) -> bytes:
        self.counter[0] += 7
        return str(self.counter[0]).encode()

    def with_input(self, listing: bytes) -> "Listed":
        return replace(self, first=int(listing))

    def reader(self) -> "ListedReader":
        return ListedReader(self)

    def check(self) -> None:
        return None


class ListedReader(weir.spi.SourceReader):
    def __init__(self, source: Listed) -> None:
        self._source = source

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._state = context.state.list_state("splits")
        assert self._source.first is not None, "nobody has listed the input"
        numbers, first = range(context.index, SPLITS, context.parallelism), self._source.first
        self._splits: list[list[int]] = self._state.get() if context.restored else []
        if not context.restored:
            self._splits = [[1_000 * number + first, 1_000 * number + self._source.rows] for number in numbers]

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        for split in self._splits:
            at, stop = split[0], min(split[0] + max_rows, split[1])
            if at < stop:
                split[0] = stop
                return pa.record_batch([pa.array(range(at, stop)), pa.array(range(at, stop))], schema=SCHEMA)
        return None

    @property
    def exhausted(self) -> bool:
        return False

    def snapshot(self, checkpoint: int) -> None:
        self._state.replace(self._splits)


class Master:
    """Opens the live part for all subtasks of an attempt at once, as `Histories` and the control connection do."""

    def __init__(self, readings: list[Reading]) -> None:
        self.readings = readings
        self.is_live = False

    def open_live(self) -> None:
        if not self.is_live and all(reading.reader.awaits_live for reading in self.readings):
            self.is_live = True
            for reading in self.readings:
                reading.reader.begin_live()
                reading.state.check_declarations()


def attempt(source: Source, parallelism: int, **options: Any) -> Master:
    return Master([Reading(source, index=i, parallelism=parallelism, **options) for i in range(parallelism)])


def files(folder: Path, *, bounded: bool, **options: Any) -> weir.DirectorySource:
    return weir.DirectorySource(str(folder), CSV, bounded=bounded, discovery_interval_ms=1, **options)


def folders(history: Path, live: Path, live_rows: int) -> HybridSource:
    return then(files(history, bounded=True), files(live, bounded=False))


def two_bounded(history: Path, live: Path, live_rows: int) -> HybridSource:
    return then(files(history, bounded=True), files(live, bounded=True))


def folder_and_listed(history: Path, live: Path, live_rows: int) -> HybridSource:
    return then(files(history, bounded=True), Listed(rows=live_rows))


def live_ids(make: Any, first: int, live_rows: int) -> list[int]:
    if make is folder_and_listed:  # from the listing of the first start on: every later one would lose rows
        return [1_000 * number + at for number in range(SPLITS) for at in range(7, live_rows)]
    return list(range(first, first + live_rows))


@pytest.mark.parametrize("make", [folders, two_bounded, folder_and_listed])
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_every_row_is_read_once_across_cuts_before_at_and_after_the_switch(
    make: Any, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S0-08: a history and a live part are one stream with one position, whatever the parallelism of each attempt."""
    random_ = random.Random(seed)
    folder = tmp_path_factory.mktemp("input")
    total, live_rows = random_.randrange(0, 90), random_.randrange(8, 60)
    write_files(folder / "history", range(total), random_)
    write_files(folder / "live", range(total, total + live_rows), random_)
    declared = make(folder / "history", folder / "live", live_rows)
    declared.check()
    store, clock, snapshots, committed = MemorySnapshotStore(), ManualClock(START_MS), list[Any](), list[int]()
    for number in range(8):
        listing = declared.list_input()
        assert listing is not None
        master = attempt(
            declared.with_input(listing),
            random_.randrange(1, 5),
            store=store,
            snapshots=snapshots,
            clock=clock,
            token=number + 1,
        )
        uncommitted = list[int]()
        for step in range(random_.randrange(0 if number else 1, 40)):
            clock.advance(10)
            batch = random_.choice(master.readings).poll(random_.randrange(1, 12))
            uncommitted += batch.column("id").to_pylist() if batch is not None else []
            if random_.random() < 0.5:
                master.open_live()
            if random_.random() < 0.1 or (not number and not step):
                snapshots = [reading.snapshot(f"chk-{number}-{step}") for reading in master.readings]
                committed, uncommitted = committed + uncommitted, []
    listing = declared.list_input()
    assert listing is not None
    last = attempt(declared.with_input(listing), 2, store=store, snapshots=snapshots, clock=clock)
    for _ in range(2):
        for reading in last.readings:
            committed += [row["id"] for row in reading.rows(9)]
        last.open_live()
    assert all(reading.exhausted() == declared.bounded for reading in last.readings)
    expected = [*range(total), *live_ids(make, total, live_rows)]
    assert Counter(committed) == Counter(expected)


def test_a_restore_behind_the_switch_opens_no_history_and_drops_its_state(tmp_path: Path) -> None:
    """The input of the history may be gone: years of files are moved once they are read."""
    write_files(tmp_path / "history", range(40), random.Random(1))
    write_files(tmp_path / "live", range(40, 50), random.Random(1))
    source = then(files(tmp_path / "history", bounded=True), files(tmp_path / "live", bounded=False))
    first = attempt(source, 1)
    first.readings[0].rows()
    first.open_live()
    first.readings[0].poll(3)
    snapshots = [first.readings[0].snapshot("chk-1")]
    assert any(name.startswith("history.") for name in snapshots[0].keyed)
    shutil.rmtree(tmp_path / "history")
    second = attempt(source, 2, store=first.readings[0].store, snapshots=snapshots)
    assert not any(reading.reader.awaits_live for reading in second.readings)
    rows = [row["id"] for reading in second.readings for row in reading.rows()]
    assert sorted(rows) == list(range(43, 50))
    after = second.readings[0].snapshot("chk-2")
    assert not any(name.startswith("history.") for name in (*after.keyed, *after.proofs, *after.empty_tables))


def test_positions_of_both_parts_in_one_subtask_are_refused(tmp_path: Path) -> None:
    """No checkpoint of Weir is like that: it would lose the live rows of some key groups, or repeat them."""
    write_files(tmp_path / "history", range(40), random.Random(1))
    source = then(files(tmp_path / "history", bounded=True), files(tmp_path / "history", bounded=False))
    first = attempt(source, 2)
    for reading in first.readings:
        reading.rows()
    first.readings[0].reader.begin_live()
    snapshots = [reading.snapshot("chk-1") for reading in first.readings]
    for parallelism in (1, 2):
        with pytest.raises(JobRejected, match="the live part of some key groups, and the history of others"):
            attempt(source, parallelism, store=first.readings[0].store, snapshots=snapshots)


def test_a_closed_reader_still_answers_the_master(tmp_path: Path) -> None:
    """A subtask that has ended counts as idle: the master may ask it to look for splits."""
    write_files(tmp_path, range(40), random.Random(1))
    master = attempt(then(files(tmp_path, bounded=True), files(tmp_path, bounded=False)), 1)
    master.readings[0].rows()
    master.open_live()
    master.readings[0].rows()
    reader = master.readings[0].reader
    before = reader.discoveries
    reader.close()
    reader.look_for_splits()
    assert reader.discoveries == before > 0


def test_a_subtask_does_not_begin_the_live_part_with_history_left(tmp_path: Path) -> None:
    write_files(tmp_path, range(40), random.Random(1))
    (reading,) = attempt(then(files(tmp_path, bounded=True), files(tmp_path, bounded=False)), 1).readings
    reading.poll(3)
    with pytest.raises(AssertionError, match="a part of the history is unread"):
        reading.reader.begin_live()


# ---------------------------------------------------------------- event time


def test_the_watermark_of_the_history_leaves_room_for_the_disorder_of_the_live_part(tmp_path: Path) -> None:
    """A live row may be 70 ms older than the last row of the history; within the history nothing is late."""
    drop(tmp_path / "history", "a.csv", csv(range(101)))
    drop(tmp_path / "live", "b.csv", "id,at\n200,930\n201,1100\n")
    history = files(tmp_path / "history", bounded=True, event_time="at", max_disorder_ms=20)
    live = files(tmp_path / "live", bounded=False, event_time="at", max_disorder_ms=70)
    master = attempt(then(history, live), 1)
    reader = master.readings[0].reader
    master.readings[0].rows()
    assert (reader.watermark(), reader.max_disorder_ms, reader.idle) == (929, 70, False)
    master.open_live()
    assert reader.watermark() == 929, "event time does not go back, as in BATCH"
    master.readings[0].poll(1)
    assert reader.watermark() == 929
    assert reader.max_disorder_ms == 70


def test_a_history_without_a_stated_disorder_is_refused_before_a_part_without_end(tmp_path: Path) -> None:
    """A bounded job fails at a late row of such a source; this one would drop it."""
    drop(tmp_path / "history", "a.csv", csv(range(3)))
    drop(tmp_path / "live", "b.csv", csv(range(3, 6)))
    history = files(tmp_path / "history", bounded=True, event_time="at")
    with pytest.raises(JobRejected, match="history: set max_disorder_ms, 0 for rows in order"):
        then(history, files(tmp_path / "live", bounded=False, event_time="at")).check()
    then(history, files(tmp_path / "live", bounded=True, event_time="at")).check()


def test_a_finished_sequence_does_not_pass_its_last_row() -> None:
    """A live part goes on at this time. The splits of this subtask begin far behind the end of the sequence."""
    sequence = weir.SequenceSource(rows=10, microseconds_per_row=1_000)
    readings = [Reading(sequence, index=index, parallelism=2) for index in range(2)]
    assert [row["id"] for reading in readings for row in reading.rows()] == list(range(10))
    assert [reading.reader.watermark() for reading in readings] == [9, 9]


# ---------------------------------------------------------------- refusals


def kafka(**options: Any) -> weir.KafkaSource:
    return weir.KafkaSource("localhost:9092", "rows", weir.KafkaJson(SCHEMA), **options)


HISTORY = weir.DirectorySource("/in", CSV, bounded=True)
OTHER = weir.CsvFormat(pa.schema([("id", pa.int64()), ("at", pa.string())]))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (then(kafka(), kafka()), "history: must be bounded, since the live part begins at its end"),
        (then(HISTORY, then(HISTORY, kafka())), "live: must be a source without parts of its own"),
        (then(then(HISTORY, HISTORY), kafka()), "history: must be a source without parts of its own"),
        (then(HISTORY, weir.DirectorySource("/l", OTHER)), "live: its columns differ .* 'at' was int64 and is string"),
        (then(HISTORY, kafka(metadata=("offset",))), "live: its columns differ .* 'kafka_offset' is new"),
        (
            then(weir.ParquetSource("/in"), weir.DirectorySource("/l", weir.ParquetFormat())),
            "history: its columns must be known before it reads",
        ),
        (then(HISTORY, kafka(event_time="at")), "history: has no event times, unlike the other part"),
        (then(replace(HISTORY, event_time="at"), kafka()), "live: has no event times, unlike the other part"),
        (then(replace(HISTORY, split_bytes=0), kafka()), "history.split_bytes: "),
        (then(HISTORY, kafka(discovery_interval_ms=0)), "live.discovery_interval_ms: "),
        (then(HISTORY, kafka(discovery_interval_ms="1")), "discovery_interval_ms must be a whole number"),
        (then(HISTORY, cast("Any", kafka)), "source.live must be a source, not function, which has no bounded"),
        (then(cast("Any", weir.DirectorySource), kafka()), "must be an instance, not the class DirectorySource"),
        (
            then(weir.from_spark(lambda spark: spark.range(1)), kafka()),
            "history: SparkTable has a PySpark stage, which feeds a source that stands alone",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(source: Source, problem: str) -> None:
    with pytest.raises(JobRejected, match=problem) as refusal:
        weir.Dataflow("job").source("rows", source)
    assert "rows" in str(refusal.value)


def test_a_batch_job_refuses_an_endless_live_part() -> None:
    from spark_jobs.batch.refusals import check_batch

    flow = weir.Dataflow("job")
    flow.source("rows", then(HISTORY, kafka())).sink("out", weir.DiscardSink())
    with pytest.raises(JobRejected, match="rows: BATCH reads bounded sources"):
        check_batch(flow.compile(1))


def test_columns_that_only_the_data_shows_are_compared_as_they_come(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    drop(tmp_path / "history", "a.csv", csv(range(3)))
    (tmp_path / "live").mkdir()
    pq.write_table(pa.table({"id": [3], "at": ["x"]}), tmp_path / "live" / "b.parquet")
    live = weir.DirectorySource(str(tmp_path / "live"), weir.ParquetFormat())
    source = then(files(tmp_path / "history", bounded=True), live)
    source.check()
    assert source.output_columns() == SCHEMA
    master = attempt(source, 1)
    master.readings[0].rows()
    master.open_live()
    with pytest.raises(DataRejected, match=r"files, live: its columns .* 'at' was int64 and is string"):
        master.readings[0].poll()


# ---------------------------------------------------------------- abilities


def test_abilities_are_those_of_both_parts(tmp_path: Path) -> None:
    changes = weir.PostgresChanges("postgresql://u@h:1/d", "p", "s", "t", columns=("id", "at"))
    declared = then(HISTORY, changes)
    declared.check()
    assert (declared.bounded, declared.guarantee) == (False, "exactly-once")
    assert (declared.emits_changelog, declared.exclusive, declared.has_event_time) == (True, True, False)
    assert then(HISTORY, kafka()).with_used_columns(frozenset({"at"})).output_columns() == SCHEMA.remove(0)
    assert declared.with_used_columns(frozenset({"at"})) is declared, "the rows of both parts have the same columns"
    assert then(HISTORY, HISTORY).max_disorder_ms is None, "late rows of a bounded job fail it"
    assert then(replace(HISTORY, event_time="at", max_disorder_ms=5), kafka(max_disorder_ms=7)).max_disorder_ms == 7
    assert dict(then(HISTORY, kafka()).folders()) == {"history.path": "/in"}
