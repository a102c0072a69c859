"""The versions of a table: when they are read, the table that cannot be read, restores."""

import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.connectors.formats.csv import CsvFormat
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.graph import JobGraph
from runtime.dataflow.versioned_table import EMPTY_VERSIONS, FAILED_REFRESHES, VersionedTable
from runtime.errors import JobRejected
from runtime.operators.broadcast_join import ROWS_COLUMN, VERSION_COLUMN
from tests.contracts.files import Reading, drop
from tests.manual_clock import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("label", pa.string())])
INTERVAL_MS = 60_000
FILES = DirectorySource("/t", CsvFormat(SCHEMA), bounded=True)


def table(folder: Path) -> VersionedTable:
    source = VersionedTable(DirectorySource(str(folder), CsvFormat(SCHEMA), bounded=True), INTERVAL_MS)
    source.check()
    return source


def write(folder: Path, label: str, count: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for start in range(0, count, 2):
        text = "id,label\n" + "".join(f"{number},{label}\n" for number in range(start, min(start + 2, count)))
        drop(folder, f"{start}.csv", text)


@dataclass
class Versions:
    """The reader under a clock."""

    folder: Path
    clock: ManualClock
    snapshots: tuple[Any, ...] = ()
    store: Any = None

    def __post_init__(self) -> None:
        self.reading = Reading(table(self.folder), clock=self.clock, snapshots=self.snapshots, store=self.store)

    def polled(self, polls: int = 20, max_rows: int = 3) -> list[tuple[int, Any, Any]]:
        """The version, the label and the number of rows of each row."""
        batches = [self.reading.poll(max_rows) for _ in range(polls)]
        rows = [row for batch in batches if batch is not None for row in batch.to_pylist()]
        return [(row[VERSION_COLUMN], row["label"], row[ROWS_COLUMN]) for row in rows]

    def restored(self) -> "Versions":
        snapshot = self.reading.snapshot(f"chk-{self.clock.now_ms()}")
        return Versions(self.folder, self.clock, (snapshot,), self.reading.store)


def test_a_version_is_read_after_each_interval_and_ends_with_the_number_of_its_rows(tmp_path: Path) -> None:
    """Between two versions the source is idle, and a restore reads none twice."""
    clock = ManualClock(1_000_000)
    write(tmp_path / "t", "first", 3)
    versions = Versions(tmp_path / "t", clock)
    assert versions.polled() == [], "the build side has just been read"
    write(tmp_path / "t", "a", 5)
    clock.advance(INTERVAL_MS)
    assert versions.polled() == [*[(2, "a", None)] * 5, (2, None, 5)]
    assert versions.reading.reader.idle
    versions = versions.restored()
    assert versions.polled() == []
    clock.advance(INTERVAL_MS)
    assert versions.polled() == [*[(3, "a", None)] * 5, (3, None, 5)]


def test_a_version_in_progress_at_a_restore_is_begun_anew_under_the_next_number(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    write(tmp_path / "t", "a", 5)
    versions = Versions(tmp_path / "t", clock)
    clock.advance(INTERVAL_MS)
    assert versions.polled(polls=1) == [(2, "a", None)] * 2
    assert not versions.reading.reader.idle
    write(tmp_path / "t", "b", 3)
    assert versions.restored().polled() == [*[(3, "b", None)] * 3, (3, None, 3)]


def test_a_table_that_cannot_be_read_leaves_the_version_before_in_use_and_is_counted(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    versions = Versions(tmp_path / "t", clock)
    clock.advance(INTERVAL_MS)
    assert versions.polled() == []
    assert versions.reading.context.counters == {FAILED_REFRESHES: 1}, "once in an interval"
    drop(tmp_path / "t", "0.csv", "id,label\n1,a\n2,a\n")
    drop(tmp_path / "t", "1.csv", "id,label\nnone,a\n")
    clock.advance(INTERVAL_MS)
    assert (None, None) not in [(label, rows) for _, label, rows in versions.polled()]
    assert versions.reading.context.counters == {FAILED_REFRESHES: 2}
    write(tmp_path / "t", "b", 1)
    clock.advance(INTERVAL_MS)
    assert versions.polled() == [(4, "b", None), (4, None, 1)]


def test_a_table_without_rows_replaces_no_version(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000)
    drop(tmp_path / "t", "0.csv", "id,label\n")
    versions = Versions(tmp_path / "t", clock)
    clock.advance(INTERVAL_MS)
    assert versions.polled() == []
    assert versions.reading.context.counters == {EMPTY_VERSIONS: 1}


def test_a_system_that_refuses_a_version_is_counted_like_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is dropped and created each night refuses a reader meanwhile: the job must not end by it."""
    clock = ManualClock(1_000_000)
    write(tmp_path / "t", "a", 1)
    versions = Versions(tmp_path / "t", clock)

    def refuse(source: DirectorySource) -> None:
        raise JobRejected("missing-table", "table", "there is no such table")

    monkeypatch.setattr(DirectorySource, "reader", refuse)
    clock.advance(INTERVAL_MS)
    assert versions.polled() == []
    assert versions.reading.context.counters == {FAILED_REFRESHES: 1}
    monkeypatch.undo()
    clock.advance(INTERVAL_MS)
    assert versions.polled() == [(3, "a", None), (3, None, 1)]


def test_malformed_rows_of_a_version_are_written_before_a_snapshot(tmp_path: Path) -> None:
    """A row that is neither in the version nor in the folder of dead letters would be lost."""
    clock, letters = ManualClock(1_000_000), tmp_path / "letters"
    source = DirectorySource(
        str(tmp_path / "t"), CsvFormat(SCHEMA), bounded=True, on_malformed="dead_letter", dead_letter_path=str(letters)
    )
    drop(tmp_path / "t", "0.csv", "id,label\n1,a\nnone,b\n2,a\n")
    reading = Reading(VersionedTable(source, INTERVAL_MS), clock=clock)

    def kept() -> list[str]:
        return [line for file in letters.rglob("*") if file.is_file() for line in file.read_text().splitlines()]

    clock.advance(INTERVAL_MS)
    assert reading.poll() is not None
    reading.snapshot("chk-1")
    assert len(kept()) == 1
    assert "none,b" in kept()[0]


def joined(build_step: bool = False, build: Any = None, refresh: timedelta = timedelta(minutes=1)) -> JobGraph:
    flow = weir.Dataflow("job")
    probes = flow.source("probes", weir.SequenceSource())
    countries = flow.source("countries", build or FILES)
    if build_step:
        countries = countries.map_batches("same", lambda batch: batch)
    joined = probes.join_broadcast("join", countries, on=["id"], take=["label"], refresh=refresh)
    joined.sink("out", DiscardSink())
    return flow.compile(3).graph


def test_the_versions_are_read_by_a_step_of_one_subtask() -> None:
    graph = joined()
    assert graph.by_uid["join.refresh"].parallelism == 1  # type: ignore[index]
    assert [edge.target for edge in graph.edges if edge.source == "join.refresh"] == ["join"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"build_step": True}, "join: refresh: the source of its build side is read again, and 'same' is no source"),
        ({"refresh": timedelta(milliseconds=5)}, "join.refresh: refresh: must be at least 1000 ms"),
        ({"refresh": 5}, "join.*refresh"),
        ({"build": weir.from_spark(lambda spark: spark.range(1))}, "join: refresh: SparkTable has a PySpark stage"),
        ({"build": weir.then(FILES, FILES)}, "join: refresh: a history and a live source are read once"),
        ({"build": DirectorySource("/t", CsvFormat(SCHEMA))}, "its build side would never end: countries is unbounded"),
    ],
)
def test_a_refresh_that_cannot_be_is_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(JobRejected, match=problem):
        joined(**arguments)
