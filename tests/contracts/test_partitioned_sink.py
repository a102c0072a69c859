"""The Parquet sink with partition columns and with rolled files."""

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.access.data_roots import DataRoots
from runtime.connectors.commit_log import CommitLog
from runtime.connectors.partitions import partition_values, split_by_partition
from runtime.connectors.sinks import file_committer, parquet
from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.operators.sink import SinkOperator
from runtime.ports import OperatorContext
from runtime.state.backend import SubtaskState
from tests.example_counts import examples

PERMIT = CommitPermit("7", Token(1), CheckpointId(1), Token(1))


class Clock:
    now = 1_000

    def __call__(self) -> int:
        return self.now


def context(clock: Clock) -> OperatorContext:
    return OperatorContext(
        job="7", uid="out", index=0, parallelism=4, max_parallelism=16, token=Token(1),
        state=SubtaskState(range(4), 16, None), now_ms=clock,
    )  # fmt: skip


def opened(folder: Path, *by: str, clock: Clock | None = None, **arguments: Any) -> Any:
    sink_writer = ParquetSink(str(folder), partition_by=by, **arguments).writer()
    sink_writer.open(context(clock or Clock()))
    return sink_writer


def rows(days: list[Any], start: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"day": days, "n": pa.array(range(start, start + len(days)), pa.int64())})


def committed(folder: Path) -> list[tuple[str, list[int]]]:
    """Folder and numbers of each visible file, read without regard to the folders' names."""
    files = sorted(folder.rglob("part-*.parquet"))
    return [
        (str(path.parent.relative_to(folder)), pq.ParquetFile(path).read(columns=["n"])["n"].to_pylist())
        for path in files
    ]


# ---------------------------------------------------------------- partitions


def test_rows_go_to_the_folder_of_their_partition_at_the_commit(tmp_path: Path) -> None:
    """S1-42, S1-47, S1-59."""
    sink = opened(tmp_path, "day")
    day = dt.date(2024, 1, 1)
    sink.write(rows([day, None, day, dt.date(2024, 1, 2)]))
    prepared = sink.prepare(1)
    assert all(path.name.startswith(".weir-") for path in tmp_path.iterdir()), "no folder before the commit"
    committer = ParquetSink(str(tmp_path)).committer()
    assert committer.commit(PERMIT, prepared) == 3
    assert committer.commit(PERMIT, prepared) == 0
    assert committed(tmp_path) == [
        ("day=2024-01-01", [0, 2]), ("day=2024-01-02", [3]), ("day=__HIVE_DEFAULT_PARTITION__", [1]),
    ]  # fmt: skip


VALUES = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.just("../.."))


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(VALUES, st.one_of(st.none(), st.integers(-3, 3))), max_size=40))
def test_a_split_has_every_row_once_in_the_folder_of_its_values(values: list[tuple[str | None, int | None]]) -> None:
    """Hive writes the empty text as null."""
    batch = pa.RecordBatch.from_pydict(
        {
            "text": pa.array([text for text, _ in values], pa.string()),
            "row": pa.array(range(len(values)), pa.int64()),
            "number": pa.array([number for _, number in values], pa.int8()),
        }
    )
    folders: dict[int, tuple[str | None, str | None]] = {}
    for folder, part in split_by_partition(batch, ["number", "text"]):
        assert folder.count("/") == 1
        assert part.schema.names == ["row"]
        given_back = partition_values(f"{folder}/part")
        numbers = part["row"].to_pylist()
        assert numbers == sorted(numbers)
        folders |= dict.fromkeys(numbers, (given_back["text"], given_back["number"]))
    expected = [(text or None, None if number is None else str(number)) for text, number in values]
    assert folders == dict(enumerate(expected))


@pytest.mark.parametrize("value", ["..", "../../x", "/etc", ".", "a\x00b", "a=b", "%2F"])
def test_no_value_names_another_folder(tmp_path: Path, value: str) -> None:
    """Arrow, as an independent reader, finds the value."""
    output = tmp_path / "out"
    sink = opened(output, "day")
    sink.write(rows([value]))
    ParquetSink(str(output)).committer().commit(PERMIT, sink.prepare(1))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (folder,) = [path for path in output.iterdir() if path.is_dir()]
    assert folder.name.startswith("day=")
    text = ds.partitioning(pa.schema([("day", pa.string())]), flavor="hive")
    assert ds.dataset(output, format="parquet", partitioning=text).to_table()["day"].to_pylist() == [value]


@pytest.mark.parametrize(
    "batch",
    [rows(["x" * 300]), rows([1.5]), rows(["a"]).select(["n"]), rows(["a"]).select(["day"])],
    ids=["long", "float", "absent", "alone"],
)
def test_rows_without_a_folder_name_are_refused(tmp_path: Path, batch: pa.RecordBatch) -> None:
    with pytest.raises(DataRejected, match="partition_by"):
        opened(tmp_path, "day").write(batch)


@pytest.mark.parametrize("options", [
    {"partition_by": "day"}, {"partition_by": ("_day",)}, {"partition_by": ("a", "a")}, {"max_bytes": 0},
    {"roll_after_idle_ms": 0},
])  # fmt: skip
def test_bad_options_are_refused(options: Any) -> None:
    with pytest.raises(JobRejected):
        ParquetSink("/out", **options).check()


@pytest.mark.parametrize("folder", ["../", "day=a/../", "/", ".day=a/", "day/", "day=a//"])
def test_a_committable_leads_to_no_other_folder(tmp_path: Path, folder: str) -> None:
    sink = opened(tmp_path / "out", "day")
    sink.write(rows(["a"]))
    (file,) = sink.prepare(1)
    bad = file | {"final": folder + file["final"].rpartition("/")[2]}
    with pytest.raises(JobRejected, match="has not written"):
        ParquetSink(str(tmp_path / "out")).committer().commit(PERMIT, [bad])


def test_a_partition_that_is_a_link_out_of_the_data_roots_gets_no_file(tmp_path: Path) -> None:
    output, outside = tmp_path / "roots" / "out", tmp_path / "outside"
    sink = opened(output, "day")
    sink.write(rows(["a"]))
    outside.mkdir()
    (output / "day=a").symlink_to(outside)
    committer = FileCommitter(output, DataRoots(allowed=(tmp_path / "roots",)))
    with pytest.raises(JobRejected, match="not a folder that jobs may use"):
        committer.commit(PERMIT, sink.prepare(1))
    assert list(outside.iterdir()) == []


def test_a_consumer_may_take_a_whole_partition(tmp_path: Path) -> None:
    """S1-06: the mark in the output folder proves the commit."""
    sink = opened(tmp_path, "day")
    sink.write(rows(["a", "b"]))
    prepared = sink.prepare(1)
    committer = ParquetSink(str(tmp_path)).committer()
    committer.commit(PERMIT, prepared)
    (tmp_path / "day=a").rename(tmp_path / "archive")
    assert ParquetSink(str(tmp_path)).committer().commit(PERMIT, prepared) == 0
    assert [folder for folder, _ in committed(tmp_path)] == ["archive", "day=b"]


def test_a_pending_file_whose_partition_vanishes_is_not_taken_for_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer removes empty folders between the creation of the folder and the rename."""
    sink = opened(tmp_path, "day")
    sink.write(rows(["a"]))
    prepared = sink.prepare(1)
    with monkeypatch.context() as patch:
        patch.setattr(file_committer, "make_folder", lambda folder: None)
        with pytest.raises(EnvironmentFailure, match="is gone"):
            ParquetSink(str(tmp_path)).committer().commit(PERMIT, prepared)
    assert ParquetSink(str(tmp_path)).committer().commit(PERMIT, prepared) == 1
    assert committed(tmp_path) == [("day=a", [0])]


def test_a_savepoint_commits_partitions_in_another_folder(tmp_path: Path) -> None:
    former, output = tmp_path / "former", tmp_path / "out"
    sink = opened(former, "day")
    sink.write(rows(["a", "b"]))
    ParquetSink(str(output)).committer().commit(PERMIT, sink.prepare(1))
    assert committed(output) == [("day=a", [0]), ("day=b", [1])]


def test_the_commit_log_names_files_by_their_path(tmp_path: Path) -> None:
    sink = opened(tmp_path, "day")
    committer = ParquetSink(str(tmp_path)).committer()
    sink.write(rows(["a", "b"]))
    prepared = sink.prepare(1)
    for _ in range(2):
        committer.commit_epoch(PERMIT, prepared)
    log = CommitLog(tmp_path)
    (epoch,) = log.epochs("7", "out")
    assert {file.name for file in epoch.files} == {file["final"] for file in prepared}
    assert all((tmp_path / file.name).stat().st_size == file.bytes for file in epoch.files)


def test_open_files_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions beyond the bound are rolled; no row is lost and the least recently written file goes first."""
    monkeypatch.setattr(parquet.HiddenFolder, "max_open_files", 3)
    sink = opened(tmp_path, "day")
    for start in range(0, 40, 10):
        sink.write(rows([str(number % 5) for number in range(10)], start))
        assert len(list(tmp_path.glob("*.inprogress"))) <= 3
    prepared = sink.prepare(1)
    assert ParquetSink(str(tmp_path)).committer().commit(PERMIT, prepared) == len(prepared) > 5
    counts = Counter((folder, number) for folder, numbers in committed(tmp_path) for number in numbers)
    assert counts == Counter((f"day={number % 5}", number) for number in range(40))


# ---------------------------------------------------------------- rolling


def test_files_are_rolled_by_size(tmp_path: Path) -> None:
    """S1-41, S1-44: also within a batch that alone is larger than the bound."""
    bound, noise = 64_000, np.random.default_rng(7)
    values = noise.integers(0, 2**62, 60_000)
    sink = opened(tmp_path, max_bytes=bound)
    for start in range(0, 20_000, 500):
        sink.write(pa.RecordBatch.from_arrays([pa.array(values[start : start + 500])], names=["n"]))
    sink.write(pa.RecordBatch.from_arrays([pa.array(values[20_000:])], names=["n"]))
    assert len(list(tmp_path.glob("*.pending"))) >= 60_000 * 8 // bound - 1, "pending before the barrier"
    prepared = sink.prepare(1)
    sizes = [file["bytes"] for file in prepared]
    assert all(size <= bound + 2_000 for size in sizes), "the footer comes on top"
    assert len(sizes) <= 2 * 60_000 * 8 / bound
    ParquetSink(str(tmp_path)).committer().commit(PERMIT, prepared)
    assert Counter(number for _, part in committed(tmp_path) for number in part) == Counter(values.tolist())


def test_a_file_without_new_rows_becomes_pending(tmp_path: Path) -> None:
    """S1-45: by a processing timer; it is committed with the next checkpoint."""
    clock = Clock()
    operator = SinkOperator(ParquetSink(str(tmp_path), partition_by=("day",), roll_after_idle_ms=100))
    operator.open(context(clock))
    out: Any = None
    assert operator.next_processing_timer() is None
    operator.process(0, rows(["a", "b"]), out)
    clock.now += 60
    operator.process(0, rows(["a"], 2), out)
    assert operator.next_processing_timer() == 1_100
    operator.on_processing_time(1_100, out)
    assert len(list(tmp_path.glob("*.pending"))) == 1, "only the file of b"
    assert operator.next_processing_timer() == 1_160
    operator.on_processing_time(1_160, out)
    assert not list(tmp_path.glob("*.inprogress"))
    assert operator.next_processing_timer() is None
    assert operator.committables() == ()
    operator.prepare_snapshot_pre_barrier(1, out)
    operator.checkpoint_completed(PERMIT)
    assert committed(tmp_path) == [("day=a", [0, 2]), ("day=b", [1])]


def test_a_closed_writer_leaves_no_rolled_file(tmp_path: Path) -> None:
    """S1-53: rolled files belong to no checkpoint until the barrier."""
    sink = opened(tmp_path, max_bytes=10)
    sink.write(rows(["a", "b", "c"]))
    assert list(tmp_path.glob("*.pending"))
    sink.close()
    assert list(tmp_path.iterdir()) == []
