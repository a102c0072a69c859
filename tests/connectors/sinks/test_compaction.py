"""Small Parquet files that are merged before they become visible, exactly once in any order of events."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis.stateful import rule, run_state_machine_as_test

import weir
from runtime.connectors.sinks.file_committer import SMALL_FILES
from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure, JobRejected
from tests.connectors.sinks.test_row_files import JOB, UID, Resuming, Subtask, commit, hidden, opened
from tests.example_counts import examples
from tests.waiting import until


def compacting(folder: Path, **arguments: Any) -> weir.ParquetSink:
    return weir.ParquetSink(str(folder), **{"compact_checkpoints": 3} | arguments)


def rows(*numbers: int, day: str = "a") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "day": [day] * len(numbers)})


def numbers_in(path: Path) -> list[int]:
    numbers: list[int] = pq.ParquetFile(path).read(["n"])["n"].to_pylist()
    return numbers


def visible(folder: Path) -> list[list[int]]:
    return sorted(numbers_in(path) for path in folder.rglob("part-*"))


def start(sink: Any, entries: Sequence[Any] = (), **arguments: Any) -> Subtask:
    return opened(sink, entries, list_state=SMALL_FILES, **arguments)


def merged_at(subtask: Subtask, folder: Path, checkpoint: int) -> tuple[list[Any], list[Any]]:
    """The snapshot after the merge in the background has ended."""
    until(lambda: any("~" in name and name.endswith(".pending") for name in hidden(folder)))
    until(lambda: not any(name.endswith(".inprogress") for name in hidden(folder)))
    return until_prepared(subtask, checkpoint)


def until_prepared(subtask: Subtask, checkpoint: int) -> tuple[list[Any], list[Any]]:
    """The first snapshot with a committable: a merge may end after its file has its name."""
    snapshots: list[tuple[list[Any], list[Any]]] = []

    def is_prepared() -> bool:
        snapshots.append(subtask.snapshot(checkpoint))
        return bool(snapshots[-1][0])

    until(is_prepared)
    return snapshots[-1]


def test_files_of_three_checkpoints_become_one(tmp_path: Path) -> None:
    """The small files go after the merged file is visible."""
    sink = compacting(tmp_path)
    subtask = start(sink)
    for checkpoint in (1, 2, 3):
        subtask.write(rows(checkpoint))
        prepared, entries = subtask.snapshot(checkpoint)
        assert (prepared, len(entries)) == ([], checkpoint)
    assert sink.committer().missing(entries) == []
    prepared, entries = merged_at(subtask, tmp_path, 4)
    assert ([each["rows"] for each in prepared], entries) == ([3], [])
    assert len(hidden(tmp_path)) == 4
    assert commit(sink, prepared, 4) == 1
    assert visible(tmp_path) == [[1, 2, 3]]
    assert hidden(tmp_path) == []
    assert commit(sink, prepared, 4) == 0


def test_files_that_are_large_enough_do_not_wait(tmp_path: Path) -> None:
    sink = compacting(tmp_path, compact_checkpoints=100, compact_bytes=1)
    subtask = start(sink)
    subtask.write(rows(1))
    prepared, entries = subtask.snapshot(1)
    prepared, entries = until_prepared(subtask, 2) if not prepared else (prepared, entries)
    assert (len(prepared), entries) == (1, [])
    assert prepared[0]["merged"] == []
    commit(sink, prepared, 2)
    assert (visible(tmp_path), hidden(tmp_path)) == ([[1]], [])


def test_the_end_of_all_rows_merges_the_rest(tmp_path: Path) -> None:
    """Per partition; files of other columns are not merged."""
    sink = compacting(tmp_path, partition_by=("day",), compact_checkpoints=50)
    subtask = start(sink)
    for number in range(6):
        subtask.write(rows(number, day="ab"[number % 2]))
        subtask.snapshot(number)
    subtask.write(pa.RecordBatch.from_pydict({"n": [6], "more": ["x"], "day": ["a"]}))
    subtask.finish()
    prepared, entries = subtask.snapshot(9)
    assert entries == []
    commit(sink, prepared, 9)
    files = {path.parent.name: numbers for path in tmp_path.rglob("part-*") if len(numbers := numbers_in(path)) > 1}
    assert files == {"day=a": [0, 2, 4], "day=b": [1, 3, 5]}
    assert [6] in visible(tmp_path)
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_checkpoint_before_the_merge_can_be_restored(tmp_path: Path, is_taken: bool) -> None:
    """S1-50: before the commit from the small files; after it their rows are visible, or a consumer took them."""
    sink = compacting(tmp_path)
    subtask = start(sink)
    for checkpoint in (1, 2, 3):
        subtask.write(rows(checkpoint))
        _, entries = subtask.snapshot(checkpoint)
    prepared, _ = merged_at(subtask, tmp_path, 4)
    successor = start(sink, entries, token=2)
    successor.finish()
    assert [each["rows"] for each in successor.snapshot(5)[0]] == [3], "the merge is not committed"
    commit(sink, prepared, 4)
    if is_taken:
        for path in tmp_path.glob("part-*"):
            path.unlink()
    third = start(sink, entries, token=3)
    third.finish()
    assert third.snapshot(5) == ([], [])


def test_a_refused_merge_keeps_no_claim(tmp_path: Path) -> None:
    """An older attempt has committed one of its files meanwhile. The next restore publishes the other."""
    sink = compacting(tmp_path)
    subtask = start(sink)
    for checkpoint in (1, 2):
        subtask.write(rows(checkpoint))
        _, entries = subtask.snapshot(checkpoint)
    zombie, loser = start(sink, entries[1:], token=2), start(sink, entries, token=3)
    for each in (zombie, loser):
        each.finish()
    commit(sink, zombie.snapshot(3)[0], 3, 2)
    with pytest.raises(JobRejected, match="rows of it are visible in"):
        commit(sink, loser.snapshot(4)[0], 4, 3)
    sink.committer().clean(JOB, UID, Token(4), entries)
    successor = start(sink, entries, token=4)
    successor.finish()
    commit(sink, successor.snapshot(5)[0], 5, 4)
    assert visible(tmp_path) == [[1], [2]]


def test_a_savepoint_is_restored_into_another_folder(tmp_path: Path) -> None:
    subtask = start(compacting(tmp_path / "a"))
    subtask.write(rows(1))
    _, entries = subtask.snapshot(1)
    other = compacting(tmp_path / "b")
    successor = start(other, entries, token=2)
    successor.write(rows(2))
    successor.finish()
    commit(other, successor.snapshot(2)[0], 2, 2)
    assert visible(tmp_path / "b") == [[1, 2]]
    assert len(hidden(tmp_path / "a")) == 1, "the savepoint still names it"


def test_a_savepoint_restored_twice_shows_its_rows_once(tmp_path: Path) -> None:
    """S1-06: three runs merge the small files of the savepoint with their own; the first to commit wins."""
    sink = compacting(tmp_path)
    subtask = start(sink)
    subtask.write(rows(1))
    _, savepoint = subtask.snapshot(1)
    subtask.write(rows(2))
    runs = [subtask, *(start(sink, savepoint, token=token) for token in (2, 3))]
    for run in runs:
        run.finish()
    prepared = [run.snapshot(2)[0] for run in runs]
    commit(sink, prepared[1], 2, 2)
    for late in (0, 2):
        with pytest.raises(JobRejected, match=r"visible in part-7-2-out-0-"):
            commit(sink, prepared[late], 2, late + 1)
    successor = start(sink, savepoint, token=4)
    successor.write(rows(4))
    successor.finish()
    commit(sink, successor.snapshot(3)[0], 3, 4)
    assert visible(tmp_path) == [[1], [4]]


def test_a_lost_or_damaged_file_is_named(tmp_path: Path) -> None:
    sink = compacting(tmp_path)
    subtask = start(sink)
    for number in (1, 2):
        subtask.write(rows(number))
        _, entries = subtask.snapshot(number)
    (first, _) = sorted(tmp_path.glob(".weir-*"))
    content = first.read_bytes()
    first.write_bytes(b"x" * len(content))
    with pytest.raises(EnvironmentFailure, match=f"{first.name}: the file is damaged"):
        start(sink, entries, token=2)
    first.unlink()
    with pytest.raises(EnvironmentFailure, match=first.name):
        start(sink, entries, token=3)


def test_a_file_with_a_damaged_page_is_named(tmp_path: Path) -> None:
    subtask = start(compacting(tmp_path))
    subtask.write(rows(*range(10_000)))
    subtask.snapshot(1)
    (first,) = tmp_path.glob(".weir-*")
    content = first.read_bytes()
    first.write_bytes(content[:60] + b"\xff" * 400 + content[460:])
    subtask.write(rows(1))
    subtask.finish()
    with pytest.raises(EnvironmentFailure, match=rf"{first.name}: the file is damaged"):
        subtask.snapshot(2)


@pytest.mark.parametrize("merged", ["x", [5], ["../../etc/passwd"], [".weir-7-1-other-0-1.pending"]], ids=str)
def test_a_committable_deletes_no_other_file(tmp_path: Path, merged: Any) -> None:
    sink = compacting(tmp_path)
    subtask = start(sink)
    subtask.write(rows(1))
    subtask.finish()
    (prepared,) = subtask.snapshot(1)[0]
    with pytest.raises(JobRejected, match="has not written"):
        commit(sink, [prepared | {"merged": merged}])


@pytest.mark.parametrize("options", [{"compact_checkpoints": 1}, {"compact_bytes": 0}])
def test_bad_options_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(JobRejected):
        compacting(tmp_path, **options).check()


def test_a_closed_writer_leaves_only_what_a_checkpoint_names(tmp_path: Path) -> None:
    sink = compacting(tmp_path)
    subtask = start(sink)
    for checkpoint in (1, 2, 3):
        subtask.write(rows(checkpoint))
        _, entries = subtask.snapshot(checkpoint)
    subtask.write(rows(99))
    subtask.operator.close()
    assert hidden(tmp_path) == sorted(entry["hidden"] for entry in entries)


class Compacting(Resuming):
    """Files of two or more checkpoints are merged, or of 2 kB."""

    def new_sink(self) -> Any:
        return compacting(self.folder, partition_by=("day",), compact_checkpoints=2, compact_bytes=2_000)

    def visible_rows(self) -> list[int]:
        return [number for numbers in visible(self.folder) for number in numbers]

    def numbers_in(self, path: Path) -> list[int]:
        return numbers_in(path)

    def open(self, share: Sequence[Any], index: int) -> Subtask:
        return start(self.sink, share, token=self.token, index=index, clock=self.clock)

    @rule()
    def wait_for_merges(self) -> None:
        until(lambda: not any(name.endswith(".inprogress") and "~" in name for name in hidden(self.folder)))


@pytest.mark.hypothesis
def test_any_order_of_events_shows_each_row_once() -> None:
    """S1-06, S1-46, S1-53: rescales, zombies, aborted and unnotified checkpoints; merges end at any time."""
    run_state_machine_as_test(
        Compacting, settings=settings(max_examples=examples(30), stateful_step_count=20, deadline=None)
    )
