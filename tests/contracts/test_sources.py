"""Sources: every row once across restores and rescales, positions, discovery, watermarks, malformed rows."""

import dataclasses
import errno
import io
import json
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.epochs import EpochFolder
from runtime.connectors.formats import (
    ArrowFormat,
    AvroFormat,
    CsvFormat,
    JsonLinesFormat,
    LineFormat,
    ParquetFormat,
)
from runtime.connectors.sources.directory import MALFORMED_RECORDS, DirectorySource, OnMalformed
from runtime.connectors.sources.epochs import EpochSource
from runtime.connectors.sources.local_folder import LocalFolder, OpenLocalFile
from runtime.connectors.sources.parquet import ParquetSource
from runtime.connectors.sources.sequence import SequenceSource
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import NumbersRows, Source
from spark_jobs.sources.splits import InputFolder
from spark_jobs.sources.table import from_spark
from tests.contracts.files import INTERVAL_MS, Reading, drop
from tests.example_counts import examples
from tests.manual_clock import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.int64())])
CSV = CsvFormat(SCHEMA)
JSON = JsonLinesFormat(SCHEMA)


def csv(ids: range, *, times: int = 10) -> str:
    return "id,at\n" + "".join(f"{number},{number * times}\n" for number in ids)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


# ---------------------------------------------------------------- exactness, over every kind of source


def write_csv(folder: Path, name: str, numbers: range) -> None:
    drop(folder, f"{name}.csv", csv(numbers))


def write_lines(folder: Path, name: str, numbers: range) -> None:
    drop(folder, f"{name}.txt", "".join(f"{number}\n" for number in numbers))


def write_json(folder: Path, name: str, numbers: range) -> None:
    drop(folder, f"{name}.jsonl", "".join(f'{{"at": 1, "id": {number}}}\n' for number in numbers))


def write_parquet(folder: Path, name: str, numbers: range) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": list(numbers)}), folder / f".{name}", row_group_size=7)
    (folder / f".{name}").rename(folder / f"{name}.parquet")


def write_avro(folder: Path, name: str, numbers: range) -> None:
    schema = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}]}
    data = io.BytesIO()
    fastavro.writer(data, schema, [{"id": number} for number in numbers], sync_interval=6)
    drop(folder, f"{name}.avro", data.getvalue())


def write_arrow(folder: Path, name: str, numbers: range) -> None:
    table, data = pa.table({"id": pa.array(numbers, pa.int64())}), io.BytesIO()
    with pa.ipc.new_stream(data, table.schema) as writer:
        writer.write_table(table, 7)
    drop(folder, f"{name}.arrows", data.getvalue())


def write_split(folder: Path, name: str, numbers: range) -> None:
    splits, table = InputFolder(folder), pa.table({"id": pa.array(numbers, pa.int64())})
    splits.begin(table.schema, keep=True)
    file = splits.staging_path()
    pq.write_table(table, file, row_group_size=7)
    splits.publish(file, int(name.removeprefix("part-")))
    (folder / "complete.json").unlink(missing_ok=True)
    splits.finish(splits.splits())


def write_epoch(folder: Path, name: str, numbers: range) -> None:
    """As the standing stage of a stream does, in files of three rows."""
    epochs = EpochFolder(folder)
    epochs.prepare()
    with epochs.write_epoch(int(name.rpartition("-")[2]), token=1) as aside:
        aside.mkdir()
        for start in range(0, len(numbers), 3):
            part = pa.table({"id": pa.array(numbers[start : start + 3], pa.int64())})
            pq.write_table(part, aside / f"part-{start:05}.parquet", row_group_size=2)


def epoch_source(path: str) -> EpochSource:
    columns = pa.schema([("id", pa.int64())])
    return EpochSource(make=print, folder=path, lineage="1", columns=columns, is_bound=True)


def number_of(row: dict[str, Any]) -> int:
    return int(row["id"] if "id" in row else row["line"])


KINDS: dict[str, tuple[Any, Any]] = {
    "csv": (write_csv, lambda path: DirectorySource(path, CSV)),
    "csv bounded": (write_csv, lambda path: DirectorySource(path, CSV, bounded=True)),
    "json": (write_json, lambda path: DirectorySource(path, JSON)),
    "json bounded": (write_json, lambda path: DirectorySource(path, JSON, bounded=True)),
    "lines": (write_lines, lambda path: DirectorySource(path, LineFormat())),
    "parquet": (write_parquet, lambda path: DirectorySource(path, ParquetFormat())),
    "parquet bounded": (write_parquet, ParquetSource),
    "avro": (write_avro, lambda path: DirectorySource(path, AvroFormat())),
    "arrow bounded": (write_arrow, lambda path: DirectorySource(path, ArrowFormat(), bounded=True)),
    "epochs": (write_epoch, epoch_source),
    "from_spark": (write_split, lambda path: from_spark(lambda spark: spark.range(1)).in_folder(path)),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_every_row_is_read_once_across_restores_at_any_parallelism(
    kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S1-22, S4-50: rows emitted after the last snapshot are emitted again after the restore; none is missing."""
    write, make = KINDS[kind]
    random_ = random.Random(seed)
    folder = tmp_path_factory.mktemp("input")
    total = 0
    for number in range(random_.randrange(1, 9)):
        size = random_.randrange(0, 40)
        write(folder, f"part-{number}", range(total, total + size))
        total += size
    source: Source = make(str(folder))
    store, clock, committed = MemorySnapshotStore(), ManualClock(1_000_000), list[int]()
    snapshots: list[Any] = []
    for attempt in range(5):
        parallelism = random_.randrange(1, 5)
        readers = [
            Reading(source, store=store, snapshots=snapshots, index=i, parallelism=parallelism, clock=clock)
            for i in range(parallelism)
        ]
        uncommitted = list[int]()
        for _ in range(random_.randrange(0, 8)):
            batch = random_.choice(readers).poll(random_.randrange(1, 12))
            uncommitted += [number_of(row) for row in batch.to_pylist()] if batch is not None else []
        if random_.random() < 0.7:
            snapshots = [reader.snapshot(f"chk-{attempt}") for reader in readers]
            committed += uncommitted
    last = [Reading(source, store=store, snapshots=snapshots, index=i, parallelism=2, clock=clock) for i in range(2)]
    for reader in last:
        committed += [number_of(row) for row in reader.rows(9)]
        assert reader.exhausted() == source.bounded
    assert sorted(committed) == list(range(total))


NUMBERED = {
    **{kind: each for kind, each in KINDS.items() if isinstance(each[1]("/in"), NumbersRows)},
    "parquet, filtered": (
        write_parquet,
        lambda path: DirectorySource(path, ParquetFormat(), filter=(pc.field("id") > 50) & (pc.field("id") != 85)),
    ),
    "csv, cut": (write_csv, lambda path: DirectorySource(path, CSV, split_bytes=50)),
    "lines, cut": (write_lines, lambda path: DirectorySource(path, LineFormat(), split_bytes=20)),
}


def numbers(reading: Reading, random_: random.Random) -> dict[int, tuple[str, int]]:
    """Reads all rows that are there. Returns split and number by row."""
    places: dict[int, tuple[str, int]] = {}
    last: dict[str, int] = {}
    reading.clock.advance(INTERVAL_MS)
    while (batch := reading.poll(random_.randrange(1, 12))) is not None:
        entries = [(each.split, int(number)) for each in reading.reader.numbered_rows for number in each.numbers]
        for split, number in entries:
            assert number > last.get(split, 0), "numbers ascend, also between batches"
            last[split] = number
        places |= dict(zip(map(number_of, batch.to_pylist()), entries, strict=True))
    return places


@pytest.mark.parametrize("kind", NUMBERED)
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_row_that_is_read_again_has_the_same_number(
    kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S4-45: other sizes of polls, a restore in the middle of a file, and files that were discovered in other order."""
    write, make = NUMBERED[kind]
    random_, folder, store = random.Random(seed), tmp_path_factory.mktemp("input"), MemorySnapshotStore()
    parts = [(f"part-{number}", range(number * 40, number * 40 + random_.randrange(40))) for number in range(6)]
    random_.shuffle(parts)
    source: Source = make(str(folder))
    assert isinstance(source, NumbersRows)
    assert source.numbers_rows
    for part in parts[: 6 if source.bounded else 3]:
        write(folder, *part)
    first = Reading(source, store=store)
    for _ in range(random_.randrange(8)):
        first.poll(random_.randrange(1, 12))
    snapshot = first.snapshot("chk-1")
    before = numbers(first, random_)
    if not source.bounded:
        for part in parts[3:]:
            write(folder, *part)
        before |= numbers(first, random_)
    again = numbers(Reading(source, store=store, snapshots=[snapshot]), random_)
    assert again == before
    assert len(set(again.values())) == len(again), "two rows have one number"


def test_a_file_that_was_replaced_within_a_tick_of_the_clock_is_another_split(tmp_path: Path) -> None:
    """S4-45: its size and time of change are those of the old one."""
    path, folder, files = tmp_path / "rows", LocalFolder(str(tmp_path)), list[OpenLocalFile]()
    for name in ("old", "new"):
        other = tmp_path / f".{name}"
        other.write_text(name)
        os.utime(other, ns=(1, 1))
        other.rename(path)
        files.append(folder.open("rows"))
    assert len({file.version for file in files}) == 2
    for file in files:
        os.close(file.descriptor)


@pytest.mark.parametrize(("rows_per_second", "expected"), [(None, True), (1, True), (0.5, False)])
def test_a_sequence_that_rests_for_long_numbers_no_rows(rows_per_second: float | None, expected: bool) -> None:
    """Else a search for rows would take a rest for a loss."""
    assert SequenceSource(rows=9, rows_per_second=rows_per_second).numbers_rows is expected


def test_the_rows_of_a_file_that_was_replaced_have_other_splits(tmp_path: Path) -> None:
    """S4-45: as many rows of the same size, which counts of rows cannot tell apart."""
    drop(tmp_path, "a.csv", csv(range(10, 20)))
    source = DirectorySource(str(tmp_path), CSV)
    first = Reading(source, store=MemorySnapshotStore())
    snapshot = first.snapshot("chk-1")
    before = set(numbers(first, random.Random(1)).values())
    drop(tmp_path, "a.csv", csv(range(20, 30)))
    again = numbers(Reading(source, store=first.store, snapshots=[snapshot]), random.Random(1))
    assert len(again) == len(before) == 10
    assert not before & set(again.values())


def test_a_file_that_was_finished_is_never_opened_again(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(5)))
    first = Reading(DirectorySource(str(tmp_path), CSV))
    first.rows()
    snapshot = first.snapshot("chk-1")
    (tmp_path / "a.csv").write_text("something else entirely")
    successor = Reading(DirectorySource(str(tmp_path), CSV), store=first.store, snapshots=[snapshot])
    assert successor.rows() == []
    drop(tmp_path, "b.csv", csv(range(5, 7)))
    assert ids(successor.rows()) == [5, 6]


def test_a_file_that_changed_after_it_was_read_in_part_is_refused(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(50)))
    first = Reading(DirectorySource(str(tmp_path), CSV))
    first.poll(10)
    snapshot = first.snapshot("chk-1")
    drop(tmp_path, "a.csv", csv(range(49)))
    successor = Reading(DirectorySource(str(tmp_path), CSV), store=first.store, snapshots=[snapshot])
    with pytest.raises(DataRejected, match=r"a\.csv: the file has changed since row 10"):
        successor.poll()


def test_a_file_that_vanished_before_its_end_is_named(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(50)))
    first = Reading(DirectorySource(str(tmp_path), CSV))
    first.poll(10)
    snapshot = first.snapshot("chk-1")
    successor = Reading(DirectorySource(str(tmp_path), CSV), store=first.store, snapshots=[snapshot])
    successor.poll(5)
    drop(tmp_path, "b.csv", csv(range(3)))
    third = Reading(DirectorySource(str(tmp_path), CSV), store=first.store, snapshots=[snapshot])
    third.poll(5)  # lists both files
    (tmp_path / "b.csv").unlink()
    with pytest.raises(EnvironmentFailure, match=r"b\.csv: the file is gone"):
        third.rows()


# ---------------------------------------------------------------- discovery


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, start in (("b", 10), ("a", 0), ("c", 20)):
        drop(tmp_path, f"{name}.csv", csv(range(start, start + 3)))
    assert ids(Reading(DirectorySource(str(tmp_path), CSV)).rows(2)) == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_hidden_names_and_folders_are_ignored(tmp_path: Path) -> None:
    for name in (".hidden.csv", "_SUCCESS", "_temporary.csv"):
        (tmp_path / name).write_text("not CSV at all")
    (tmp_path / "folder.csv").mkdir()
    reading = Reading(DirectorySource(str(tmp_path), CSV))
    assert reading.rows() == []
    assert not reading.exhausted()


def test_a_watched_folder_may_appear_later_and_is_looked_at_now_and_then(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    reading = Reading(DirectorySource(str(folder), CSV))
    assert reading.poll() is None
    drop(folder, "a.csv", csv(range(2)))
    assert reading.poll() is None
    reading.clock.advance(INTERVAL_MS)
    assert ids(reading.rows()) == [0, 1]
    drop(folder, "b.csv", csv(range(2, 4)))
    assert ids(reading.rows()) == [2, 3]


def test_a_requested_look_lists_a_watched_folder_before_its_interval_has_passed(tmp_path: Path) -> None:
    reading = Reading(DirectorySource(str(tmp_path), CSV))
    assert (reading.poll(), reading.reader.discoveries, reading.reader.has_looked) == (None, 0, True)
    drop(tmp_path, "a.csv", csv(range(2)))
    reading.reader.look_for_splits()
    assert not reading.reader.has_looked
    assert ids(reading.rows()) == [0, 1]
    assert (reading.reader.discoveries, reading.reader.has_looked) == (1, True)


def test_a_bounded_source_reads_what_was_there_at_the_start_and_ends(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(3)))
    reading = Reading(DirectorySource(str(tmp_path), CSV, bounded=True))
    assert not reading.exhausted()
    assert reading.poll(2) is not None
    drop(tmp_path, "b.csv", csv(range(3, 5)))
    assert not reading.exhausted()
    assert ids(reading.rows()) == [2]
    assert reading.exhausted()
    assert reading.poll() is None


def test_a_bounded_source_without_its_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"there is no folder .*nowhere"):
        Reading(ParquetSource(str(tmp_path / "nowhere"))).poll()


def test_every_file_belongs_to_one_subtask(tmp_path: Path) -> None:
    for number in range(40):
        drop(tmp_path, f"{number:03}.csv", csv(range(number, number + 1)))
    source = DirectorySource(str(tmp_path), CSV)
    shares = [ids(Reading(source, index=index, parallelism=3).rows()) for index in range(3)]
    assert sorted(number for share in shares for number in share) == list(range(40))
    assert all(len(share) > 4 for share in shares)


# ---------------------------------------------------------------- watermarks


def test_the_watermark_trails_the_largest_time_by_the_disorder(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", "id,at\n1,100\n2,300\n3,200\n")
    reading = Reading(DirectorySource(str(tmp_path), CSV, event_time="at", max_disorder_ms=50))
    assert reading.reader.watermark() is None
    assert reading.reader.max_disorder_ms == 50
    watermarks = []
    while reading.poll(1) is not None:
        watermarks.append(reading.reader.watermark())
    assert watermarks == [
        49,
        249,
        249,
    ]  # a row at 250 may still come, and a watermark says that none at or below it will


def test_a_source_without_event_time_has_no_watermark(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(3)))
    reading = Reading(DirectorySource(str(tmp_path), CSV))
    reading.rows()
    assert reading.reader.watermark() is None


def test_after_a_restore_the_watermark_starts_from_the_files_taken_over(tmp_path: Path) -> None:
    """A file taken over from a slower subtask is older than the own ones: it must not become late."""
    for number in range(20):
        drop(tmp_path, f"{number:02}.csv", csv(range(number * 10, number * 10 + 10)))
    source = DirectorySource(str(tmp_path), CSV, event_time="at")
    store = MemorySnapshotStore()
    fast, slow = (Reading(source, store=store, index=index, parallelism=2) for index in range(2))
    fast.rows()
    assert slow.poll(3) is not None
    merged = Reading(source, store=store, snapshots=[fast.snapshot("chk-1"), slow.snapshot("chk-1")])
    assert merged.reader.watermark() is None
    before = -1
    while (batch := merged.poll(3)) is not None:
        assert batch["at"].to_pylist()[0] > before
        watermark = merged.reader.watermark()
        assert watermark is not None
        before = watermark


# ---------------------------------------------------------------- idleness


def test_a_subtask_without_a_file_of_its_own_is_idle(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(3)))
    source = DirectorySource(str(tmp_path), CSV, event_time="at")
    first, second = (Reading(source, index=index, parallelism=2) for index in range(2))
    owner, other = (first, second) if first.poll() is not None else (second, first)
    assert (other.poll(), owner.poll()) == (None, None)
    assert [reading.reader.idle for reading in (other, owner)] == [True, False], "the owner may get more"
    for number in range(20):
        drop(tmp_path, f"{number:02}.csv", csv(range(3)))
    assert len(other.rows()) > 0
    assert [reading.reader.idle for reading in (other, owner)] == [False, False], "both have had files"


def test_a_subtask_that_was_restored_with_a_file_is_not_idle(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(3)))
    source = DirectorySource(str(tmp_path), CSV, event_time="at")
    before = Reading(source)
    before.rows()
    after = Reading(source, store=before.store, snapshots=[before.snapshot("chk-1")])
    assert after.poll() is None
    assert not after.reader.idle


def test_a_subtask_that_has_read_everything_is_idle_after_the_time_that_was_asked_for(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(3)))
    reading = Reading(DirectorySource(str(tmp_path), CSV, event_time="at", idle_after_ms=1_000))
    assert len(reading.rows()) == 3
    polls = []
    for step_ms in (999, 1):
        reading.clock.advance(step_ms)
        polls.append((reading.poll() is None, reading.reader.idle))
    drop(tmp_path, "b.csv", csv(range(3)))
    reading.clock.advance(INTERVAL_MS)
    polls += [(reading.poll() is None, reading.reader.idle) for _ in range(2)]
    assert polls == [(True, False), (True, True), (False, False), (True, False)], "the time begins anew"


# ---------------------------------------------------------------- malformed rows

BAD = (
    "at,id,unused\n"
    "1,10,x\n"
    "noon,11,x\n"  # row 2
    "3,12\n"  # row 3
    "\n"
    "4,13,x,y\n"  # row 4
    "5,99999999999999999999,x\n"  # row 5
    '6,14,"x\n'  # row 6
    "7,15,x\n"
    ",16,x\n"  # row 8
    "8,17,\n"
)
REASONS = [
    (2, "at", "invalid value 'noon', int64 expected"),
    (3, "unused", "the row has 2 values, 3 expected"),
    (4, "unused", "the row has 4 values, 3 expected"),
    (5, "id", "invalid value '99999999999999999999', int64 expected"),
    (6, "", "a quote is not closed"),
    (8, "at", "the event time is missing"),
]


def malformed(folder: Path, policy: OnMalformed, letters: Path | None = None) -> DirectorySource:
    path = None if letters is None else str(letters)
    return DirectorySource(str(folder), CSV, event_time="at", on_malformed=policy, dead_letter_path=path)


@pytest.mark.parametrize(("row", "column", "reason"), REASONS)
def test_a_malformed_row_fails_the_job_with_file_row_and_column(
    tmp_path: Path, row: int, column: str, reason: str
) -> None:
    header, *lines = BAD.replace("\n\n", "\n").splitlines(keepends=True)
    good = [line for line in lines if line[0] in "17"]
    drop(tmp_path, "a.csv", header + good[0] * (row - 1) + lines[row - 1] + good[1])
    with pytest.raises(DataRejected) as error:
        Reading(malformed(tmp_path, "fail")).rows()
    where = f", column {column!r}" if column else ""
    assert str(error.value) == f"{tmp_path / 'a.csv'}: row {row}{where}: {reason}"


def test_malformed_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", BAD)
    reading = Reading(malformed(tmp_path, "skip"))
    assert ids(reading.rows()) == [10, 15, 17]
    assert reading.context.counters == {MALFORMED_RECORDS: len(REASONS)}


def letters_in(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.iterdir()) if folder.exists() else []
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_dead_letters_keep_what_was_there(tmp_path: Path) -> None:
    source, letters = tmp_path / "in", tmp_path / "letters"
    drop(source, "a.csv", BAD)
    reading = Reading(malformed(source, "dead_letter", letters))
    assert ids(reading.rows()) == [10, 15, 17]
    reading.snapshot("chk-1")
    dead_letters = letters_in(letters)
    assert [(letter["row"], letter["column"], letter["reason"]) for letter in dead_letters] == REASONS
    assert {letter["file"] for letter in dead_letters} == {str(source / "a.csv")}
    assert [letter["text"] for letter in dead_letters][:3] == ["noon,11,x", "3,12", "4,13,x,y"]


@pytest.mark.parametrize("max_rows", [1, 2, 100])
def test_dead_letters_are_durable_with_the_position_behind_them_and_repeated_only_by_replay(
    tmp_path: Path, max_rows: int
) -> None:
    source, letters = tmp_path / "in", tmp_path / "letters"
    drop(source, "a.csv", BAD)
    letter_source = malformed(source, "dead_letter", letters)
    first = Reading(letter_source, token=1)
    first.poll(max_rows)
    snapshot = first.snapshot("chk-1")
    dead_letters = letters_in(letters)
    first.rows(max_rows)
    successor = Reading(letter_source, store=first.store, snapshots=[snapshot], token=2)
    successor.rows(max_rows)
    successor.snapshot("chk-2")
    by_attempt = {path.name: path for path in letters.iterdir()}
    replayed = by_attempt.pop("job-2-files-0.jsonl", None)
    rows = [letter["row"] for letter in dead_letters]
    rows += [json.loads(line)["row"] for line in replayed.read_text().splitlines()] if replayed else []
    assert rows == [row for row, _, _ in REASONS]
    assert set(by_attempt) <= {"job-1-files-0.jsonl"}


def test_a_file_that_is_malformed_as_a_whole_follows_the_policy(tmp_path: Path) -> None:
    source, letters = tmp_path / "in", tmp_path / "letters"
    drop(source, "a.csv", "id,when\n1,2\n")
    drop(source, "b.csv", csv(range(2)))
    with pytest.raises(DataRejected, match=r"a\.csv: the header has no column 'at'; it has id, when"):
        Reading(malformed(source, "fail")).rows()
    assert ids(Reading(malformed(source, "skip")).rows()) == [0, 1]
    reading = Reading(malformed(source, "dead_letter", letters))
    assert ids(reading.rows()) == [0, 1]
    reading.snapshot("chk-1")
    assert [(letter["file"], letter["row"]) for letter in letters_in(letters)] == [(str(source / "a.csv"), None)]


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    drop(tmp_path, "a.parquet", b"PAR1 nonsense PAR1")
    with pytest.raises(DataRejected, match=r"a\.parquet: it is not a readable Parquet file"):
        Reading(ParquetSource(str(tmp_path))).poll()


@pytest.mark.parametrize("kind", ["csv", "json", "lines", "parquet"])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_a_file_that_cannot_be_opened_now_is_not_given_up(kind: str, policy: OnMalformed, tmp_path: Path) -> None:
    """The process has no descriptor left: that is no fault of the file, whatever the policy on malformed rows."""
    write, make = KINDS[kind]
    folder, letters = tmp_path / "in", tmp_path / "letters"
    write(folder, "part-0", range(5))
    source = dataclasses.replace(make(str(folder)), on_malformed=policy, dead_letter_path=str(letters))
    reading = Reading(source)
    write(folder, "part-1", range(5, 9))
    batch = reading.poll()  # its folder has been looked at, the second file is yet to be opened
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files") as error:
        reading.poll()
    assert error.value.errno == errno.EMFILE
    assert MALFORMED_RECORDS not in reading.context.counters
    successor = Reading(source, store=reading.store, snapshots=[reading.snapshot("chk-1")])
    assert batch is not None
    assert [number_of(row) for row in batch.to_pylist() + successor.rows()] == list(range(9))


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # what is open stays open
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_files_of_other_columns_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": ["1"]}), tmp_path / "b.parquet")
    reading = Reading(ParquetSource(str(tmp_path)))
    reading.poll()
    with pytest.raises(DataRejected, match=r"b\.parquet: its columns differ"):
        reading.poll()


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: DirectorySource("", CSV), "path"),
        (lambda: DirectorySource("/in", CSV, max_disorder_ms=-1), "max_disorder_ms"),
        (lambda: DirectorySource("/in", CSV, discovery_interval_ms=0), "discovery_interval_ms"),
        (lambda: DirectorySource("/in", CSV, idle_after_ms=0), "idle_after_ms"),
        (lambda: DirectorySource("/in", CSV, event_time="when"), "event_time"),
        (lambda: DirectorySource("/in", LineFormat(), event_time="at"), "event_time"),
        (lambda: DirectorySource("/in", LineFormat(), event_time="line"), "event_time"),
        (lambda: DirectorySource("/in", CSV, on_malformed=cast("Any", "ignore")), "on_malformed"),
        (lambda: DirectorySource("/in", CSV, on_malformed="dead_letter"), "dead_letter_path"),
        (lambda: DirectorySource("/in/", CSV, on_malformed="dead_letter", dead_letter_path="/in"), "dead_letter_path"),
        (
            lambda: DirectorySource("/in", CSV, on_malformed="dead_letter", dead_letter_path="/x/../in"),
            "dead_letter_path",
        ),
        (lambda: DirectorySource("/in", CsvFormat(pa.schema([]))), "schema"),
        (lambda: DirectorySource("/in", CsvFormat(SCHEMA, delimiter="::")), "delimiter"),
    ],
)
def test_bad_settings_are_refused_by_name_before_anything_is_touched(make: Any, field: str) -> None:
    with pytest.raises(JobRejected) as error:
        make().check()
    assert error.value.field == field


def test_sources_name_their_guarantee_and_survive_the_way_to_an_executor() -> None:
    from pyspark import cloudpickle

    for source in (DirectorySource("/in", CSV, event_time="at"), ParquetSource("/in", SCHEMA)):
        source.check()
        assert source.guarantee == "exactly-once"
        copy = cloudpickle.loads(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
        assert copy == source
