"""A bounded folder: its files are fixed by a single listing, which is state from the first checkpoint on."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.formats import LineFormat
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.local_folder import LocalFolder
from runtime.connectors.sources.parquet import ParquetSource
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.dataflow.plan import source_with_input
from runtime.errors import DataRejected, EnvironmentFailure
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Source
from tests.contracts.files import Reading, drop
from tests.example_counts import examples


def bounded(folder: Path) -> DirectorySource:
    return DirectorySource(str(folder), LineFormat(), bounded=True)


def write(folder: Path, *names: str) -> None:
    for name in names:
        drop(folder, name, "".join(f"{name}-{row}\n" for row in range(5)))


def lines(*names: str) -> list[str]:
    return [f"{name}-{row}" for name in names for row in range(5)]


def restart(readings: list[Reading], source: Source, parallelism: int = 1) -> list[Reading]:
    """The readers of the next attempt, from a checkpoint of all readers."""
    store = readings[0].store
    snapshots = [reading.snapshot(f"chk-{len(store.list(''))}") for reading in readings]
    return restored(source, store, snapshots, parallelism)


def restored(
    source: Source, store: MemorySnapshotStore, snapshots: list[SubtaskSnapshot], parallelism: int
) -> list[Reading]:
    return [
        Reading(source, store=store, snapshots=snapshots, index=index, parallelism=parallelism)
        for index in range(parallelism)
    ]


def rest(readings: list[Reading]) -> list[str]:
    lines = [row["line"] for reading in readings for row in reading.rows()]
    assert all(reading.exhausted() for reading in readings)
    return sorted(lines)


def test_files_that_arrive_after_the_listing_are_not_read_after_a_restore(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    first = Reading(bounded(tmp_path))
    first.poll(2)
    write(tmp_path, "aa", "c")
    assert rest(restart([first], bounded(tmp_path))) == lines("a", "b")[2:]


def test_a_barrier_before_the_first_poll_holds_the_listing(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    second = restart([Reading(bounded(tmp_path))], bounded(tmp_path))
    write(tmp_path, "c")
    assert rest(second) == lines("a", "b")


def test_an_empty_listing_is_a_listing(tmp_path: Path) -> None:
    second = restart([Reading(bounded(tmp_path))], bounded(tmp_path))
    write(tmp_path, "a")
    assert rest(second) == []


def test_the_listing_of_the_job_master_counts_for_every_subtask(tmp_path: Path) -> None:
    """A listing per subtask would cut a large file, of which some subtasks know."""
    names = [f"{number:02}" for number in range(20)]
    write(tmp_path, *names)
    listing = bounded(tmp_path).list_input()
    source = source_with_input(bounded(tmp_path), listing)
    write(tmp_path, *(f"{name}-late" for name in names))
    readings = [Reading(source, index=index, parallelism=3) for index in range(3)]
    assert rest(readings) == lines(*names)


def test_a_parquet_source_is_listed_by_the_job_master_and_an_unbounded_source_is_not(tmp_path: Path) -> None:
    assert ParquetSource(str(tmp_path)).list_input() is not None
    assert DirectorySource(str(tmp_path), LineFormat()).list_input() is None


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_exactly_the_files_of_the_first_listing_are_read_at_any_parallelism(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S1-22: rescales 3 → 7 → 1 among others, and files that arrive at any time."""
    random_, folder = random.Random(seed), tmp_path_factory.mktemp("in")
    names = [f"{random_.random():.6f}" for _ in range(random_.randrange(12))]
    write(folder, *names)
    store, snapshots, committed = MemorySnapshotStore(), list[SubtaskSnapshot](), list[str]()
    for attempt, parallelism in enumerate((3, 7, random_.randrange(1, 5), 1)):
        source = source_with_input(bounded(folder), bounded(folder).list_input())
        readings = restored(source, store, snapshots, parallelism)
        attempt_lines = list[str]()
        for _ in range(random_.randrange(6)):
            batch = random_.choice(readings).poll(random_.randrange(1, 9))
            attempt_lines += batch["line"].to_pylist() if batch is not None else []
        if not attempt or random_.random() < 0.7:
            snapshots = [reading.snapshot(f"chk-{attempt}") for reading in readings]
            committed += attempt_lines
        write(folder, f"{random_.random():.6f}-late")
    assert sorted(committed + rest(restored(bounded(folder), store, snapshots, 2))) == sorted(lines(*sorted(names)))


def test_a_savepoint_without_a_listing_gets_the_files_of_now(tmp_path: Path) -> None:
    """Savepoints of the time when the source was unbounded."""
    write(tmp_path, "a", "b")
    watching = Reading(DirectorySource(str(tmp_path), LineFormat()))
    watching.poll(5)
    write(tmp_path, "c")
    second = restart([watching], bounded(tmp_path))
    assert second[0].poll(2) is not None
    write(tmp_path, "d")
    assert rest(restart(second, bounded(tmp_path))) == lines("b", "c")[2:]


@pytest.mark.parametrize("polls", [0, 1])
def test_a_file_of_the_listing_that_is_gone_is_named(tmp_path: Path, polls: int) -> None:
    write(tmp_path, "a", "b")
    first = Reading(bounded(tmp_path))
    for _ in range(polls):
        first.poll(5)
    checkpoint = first.snapshot("chk")
    (tmp_path / "b").unlink()
    (second,) = restored(bounded(tmp_path), first.store, [checkpoint], 1)
    with pytest.raises(EnvironmentFailure, match=r"/b: the file is gone before it was read to its end"):
        second.poll()
    write(tmp_path, "b")
    assert rest(restored(bounded(tmp_path), first.store, [checkpoint], 2)) == lines("a", "b")[5 * polls :]


def test_the_folder_may_go_when_every_file_was_read(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder, "a")
    first = Reading(bounded(folder))
    first.rows()
    (folder / "a").unlink()
    folder.rmdir()
    assert rest(restart([first], bounded(folder))) == []


def test_a_file_that_changed_after_the_listing_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a")
    source = source_with_input(bounded(tmp_path), bounded(tmp_path).list_input())
    drop(tmp_path, "a", "another\n")
    with pytest.raises(DataRejected, match=r"/a: the file has changed since it was listed: it has 8 bytes and had 20"):
        Reading(source).poll()


@pytest.mark.parametrize(
    ("names", "removals", "left"), [((), ["a"], ["b"]), (("day",), ["day=1/a", "day=1"], ["day=2/b"])]
)
def test_a_file_or_subfolder_that_is_deleted_during_the_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], removals: list[str], left: list[str]
) -> None:
    """A consumer removes files that were read to their end. The folder is there, and so are the other files."""
    for path in (removals[0], left[0]):
        write((tmp_path / path).parent, Path(path).name)
    scan = os.scandir

    @contextmanager
    def scan_and_delete(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scan(folder) as entries:
            items = list(entries)
            for path in (tmp_path / name for name in removals):
                if path.exists():
                    path.rmdir() if path.is_dir() else path.unlink()
            yield iter(items)

    folder = LocalFolder(str(tmp_path), names)
    monkeypatch.setattr(os, "scandir", scan_and_delete)
    assert [file.path for file in folder.files()] == left


def test_a_missing_folder_is_named_by_the_master(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"there is no folder .*nowhere"):
        bounded(tmp_path / "nowhere").list_input()
