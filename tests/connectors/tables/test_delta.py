"""The Delta sink on real tables: two phases, repeats, races, partitions, clean-up, savepoints, and errors by name."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.connectors.tables.data_folder import LocalFolder
from runtime.connectors.tables.delta import DeltaSink
from runtime.connectors.tables.table_writer import split
from runtime.core.job.ids import Token
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from tests.connectors.two_phases import commit, prepared, rows, writer
from tests.example_counts import examples


def table(of: DeltaSink) -> list[int]:
    return sorted(DeltaTable(of.path).to_pyarrow_table()["n"].to_pylist())


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    sink = DeltaSink(str(tmp_path / "table"))
    sink.check()
    return sink


# ---------------------------------------------------------------- two phases


def test_all_rows_of_a_checkpoint_appear_by_one_commit_that_may_be_repeated(sink: DeltaSink) -> None:
    """S1-06, S1-29, S1-38."""
    first_writer, second_writer = writer(sink), writer(sink, index=1)
    committables = prepared(first_writer, 5, 1, 2) + prepared(second_writer, 5, 3)
    assert not DeltaTable.is_deltatable(sink.path)
    assert [each["rows"] for each in committables] == [2, 1]
    assert commit(sink, *committables, checkpoint=5) == 2
    assert table(sink) == [1, 2, 3]
    version = DeltaTable(sink.path).version()
    for token in (1, 2):
        assert commit(sink, *committables, token=token, checkpoint=5) == 0
        assert commit(sink, committables[1], token=token, checkpoint=5) == 0
    assert table(sink) == [1, 2, 3]
    assert DeltaTable(sink.path).version() == version
    assert commit(sink, *prepared(first_writer, 6, 4), *prepared(second_writer, 6, 5), checkpoint=6) == 2
    assert DeltaTable(sink.path).version() == version + 1
    first_writer.close()
    second_writer.close()
    assert table(sink) == [1, 2, 3, 4, 5]


def test_a_checkpoint_without_rows_has_no_commit(sink: DeltaSink) -> None:
    sink_writer = writer(sink)
    sink_writer.write(rows())
    assert sink_writer.prepare(1) == ()
    assert commit(sink) == 0
    assert not DeltaTable.is_deltatable(sink.path)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_any_order_of_prepares_commits_and_repeats_adds_each_row_once(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    """S1-06: against a counter of the rows that were committed; several checkpoints pend, subsets are repeated."""
    of = DeltaSink(str(tmp_path_factory.mktemp("delta") / "t"))
    writers = [writer(of, index=index) for index in range(2)]
    pending: list[list[Any]] = [[], []]
    commits: list[Any] = []
    expected: Counter[int] = Counter()
    value = 0
    for checkpoint in range(1, data.draw(st.integers(2, 6)) + 1):
        for index, sink_writer in enumerate(writers):
            numbers = range(value, value + data.draw(st.integers(0, 3)))
            value = numbers.stop
            pending[index] += prepared(sink_writer, checkpoint, *numbers)
            expected.update(dict.fromkeys(numbers, 1))
        if data.draw(st.booleans()):
            repeated = data.draw(st.lists(st.sampled_from(commits), unique_by=id)) if commits else []
            commit(of, *repeated, *pending[0], *pending[1], checkpoint=checkpoint)
            commits += pending[0] + pending[1]
            pending = [[], []]
    commit(of, *pending[0], *pending[1])
    commit(of, *commits)
    assert expected == Counter(table(of) if expected else [])


def test_concurrent_commits_of_the_same_files_add_them_once(sink: DeltaSink) -> None:
    """A zombie commits at the same time as its successor: the log refuses the second commit of an identifier."""
    sink_writer = writer(sink)
    assert commit(sink, *prepared(sink_writer, 1, 0)) == 1
    for checkpoint in range(2, 8):
        committables = prepared(sink_writer, checkpoint, checkpoint)
        barrier = threading.Barrier(4)
        counts: list[int] = []

        def act(committables: list[Any] = committables, barrier: Any = barrier, counts: Any = counts) -> None:
            barrier.wait()
            counts.append(commit(sink, *committables))

        threads = [threading.Thread(target=act) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(counts) == [0, 0, 0, 1]
    assert table(sink) == [0, 2, 3, 4, 5, 6, 7]


def test_a_zombie_that_has_read_the_table_before_its_successor_commits_adds_nothing(sink: DeltaSink) -> None:
    """S1-11: the older attempt is stopped between its check and its commit."""
    sink_writer = writer(sink)
    commit(sink, *prepared(sink_writer, 1, 0))
    committables = prepared(sink_writer, 2, 1)
    zombie: Any = sink.committer()
    append = zombie._append

    def stopped(*arguments: Any) -> None:
        zombie._append = append
        assert commit(sink, *committables, token=2) == 1
        append(*arguments)

    zombie._append = stopped
    assert commit(zombie, *committables) == 0
    assert table(sink) == [0, 1]


def test_commits_of_foreign_writers_in_between_lose_no_row(sink: DeltaSink) -> None:
    sink_writer = writer(sink)
    for checkpoint in range(3):
        commit(sink, *prepared(sink_writer, checkpoint, checkpoint), checkpoint=checkpoint)
        write_deltalake(sink.path, pa.table({"n": pa.array([100], pa.int64())}), mode="append")
    assert table(sink) == [0, 1, 2, 100, 100, 100]


def test_two_runs_with_equal_names_and_tokens_both_append(sink: DeltaSink) -> None:
    """`run_local` counts its tokens from 1 each time."""
    for number in (1, 2):
        assert commit(sink, *prepared(writer(sink), 1, number)) == 1
    assert table(sink) == [1, 2]


# ---------------------------------------------------------------- leftovers


def files(of: DeltaSink) -> set[str]:
    return {path.name for path in Path(of.path).glob("part-*")}


def test_the_clean_up_removes_leftovers_of_this_sink_only_and_keeps_what_manifests_name(sink: DeltaSink) -> None:
    """S1-53, S1-54."""
    sink_writer, other, newer = writer(sink), writer(sink, uid="other"), writer(sink, token=2)
    committed = prepared(sink_writer, 1, 1)
    commit(sink, *committed)
    leftover, survivors = prepared(writer(sink, index=1), 2, 2), prepared(writer(sink, index=2), 2, 3)
    foreign, later = prepared(other, 2, 4), prepared(newer, 2, 5)
    before = files(sink)
    assert sink.committer().clean("job 1", "out", Token(2), [*survivors, {"kind": "another sink"}]) == 1
    assert before - files(sink) == {leftover[0]["files"][0]["path"]}
    assert sink.committer().clean("job 1", "out", Token(2), survivors) == 0
    assert commit(sink, *committed, *survivors, *foreign, *later, token=2) == 3
    assert table(sink) == [1, 3, 4, 5]


def test_a_file_that_the_clean_up_has_removed_can_no_longer_be_committed(sink: DeltaSink) -> None:
    """S1-11: a zombie that was stopped between its check of the files and its commit."""
    commit(sink, *prepared(writer(sink), 1, 1))
    leftover = prepared(writer(sink, index=1), 2, 2)
    zombie: Any = sink.committer()
    append = zombie._append

    def stopped(*arguments: Any) -> None:
        zombie._append = append
        assert sink.committer().clean("job 1", "out", Token(2), ()) == 1
        append(*arguments)

    zombie._append = stopped
    assert commit(zombie, *leftover) == 0
    assert table(sink) == [1]


def test_files_that_a_reader_has_removed_from_the_table_stay_committed(sink: DeltaSink) -> None:
    """S1-06: OPTIMIZE and DELETE of the table's owner do not bring rows back."""
    sink_writer = writer(sink)
    committables = prepared(sink_writer, 1, 1) + prepared(sink_writer, 2, 2)
    commit(sink, *committables)
    DeltaTable(sink.path).optimize.compact()
    DeltaTable(sink.path).delete("n = 1")
    DeltaTable(sink.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert commit(sink, *committables, token=2) == 0
    assert sink.committer().missing(committables) == []
    assert sink.committer().clean("job 1", "out", Token(2), committables) == 0
    assert table(sink) == [2]


def test_an_abandoned_file_in_progress_is_deleted(sink: DeltaSink) -> None:
    sink_writer = writer(sink)
    sink_writer.write(rows(1))
    sink_writer.close()
    assert files(sink) == set()


def test_pending_files_of_a_savepoint_follow_it_into_another_table(sink: DeltaSink, tmp_path: Path) -> None:
    """S1-51: committed files stay in the former table; the rest is copied and committed in the new table."""
    sink_writer = writer(sink)
    committed, pending = prepared(sink_writer, 1, 1), prepared(sink_writer, 2, 2)
    commit(sink, *committed)
    for name in ("second", "third"):
        other = DeltaSink(str(tmp_path / name))
        assert commit(other, *committed, *pending, token=2) == 1
        assert commit(other, *committed, *pending, token=2) == 0
        assert table(other) == [2]
    assert table(sink) == [1]


# ---------------------------------------------------------------- partitions and types


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(["a", "b/c", "d=e %", None]),
    "day": st.none() | st.dates(date(2026, 1, 1), date(2026, 1, 3)),
    "flag": st.booleans() | st.none(),
    "number": st.integers(-1, 1),
}
TYPES = {"text": pa.string(), "day": pa.date32(), "flag": pa.bool_(), "number": pa.int32()}


@settings(max_examples=examples(25), deadline=None)
@given(
    values=st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=12),
    by=st.lists(st.sampled_from(sorted(VALUES)), unique=True),
)
def test_rows_of_every_partition_are_read_back(
    values: list[dict[str, Any]], by: list[str], tmp_path_factory: Any
) -> None:
    """Values of partition columns come back from the log, in whatever way it spells them."""
    of = DeltaSink(str(tmp_path_factory.mktemp("delta") / "t"), partition_by=by)
    batch = pa.RecordBatch.from_pylist([{"n": n} | row for n, row in enumerate(values)]).cast(
        pa.schema([("n", pa.int64()), *((name, TYPES[name]) for name in values[0])])
    )
    each = writer(of)
    each.write(batch)
    commit(of, *each.prepare(1))
    read = DeltaTable(of.path)
    assert read.metadata().partition_columns == by
    assert read.to_pyarrow_table().sort_by("n").select(batch.schema.names).to_pylist() == batch.to_pylist()
    parts = Counter(tuple(row[name] for name in by) for row in values)
    assert sorted(len(rows) for _, rows in split(batch, [batch.column(name) for name in by])) == sorted(parts.values())


def test_more_partitions_than_open_files_keep_every_row(sink: DeltaSink) -> None:
    of = DeltaSink(sink.path, partition_by=("p",))
    count = LocalFolder.max_open_files + 20
    each = writer(of)
    for _ in range(2):
        each.write(pa.RecordBatch.from_pydict({"n": list(range(count)), "p": list(range(count))}))
    commit(of, *each.prepare(1))
    assert table(of) == sorted([*range(count), *range(count)])


def test_types_become_those_of_delta(sink: DeltaSink) -> None:
    sink_writer = writer(sink)
    moment = pa.array([1_000], pa.timestamp("ms"))
    columns = {"t": moment, "z": moment.cast(pa.timestamp("ms", "UTC")), "d": pa.array(["x"]).dictionary_encode(),
               "u": pa.array([7], pa.uint32()), "l": pa.array([[1]], pa.list_(pa.int32()))}  # fmt: skip
    sink_writer.write(pa.RecordBatch.from_pydict(columns))
    commit(sink, *sink_writer.prepare(1))
    read = DeltaTable(sink.path).to_pyarrow_table().to_pylist()
    assert read == pa.table(columns).to_pylist()


# ---------------------------------------------------------------- errors


def test_a_table_with_other_columns_is_named_before_a_file_is_written(sink: DeltaSink) -> None:
    write_deltalake(sink.path, pa.table({"n": ["text"], "m": [1]}))
    with pytest.raises(JobRejected, match="n is long in the stream and string in the table") as error:
        writer(sink).write(rows(1))
    assert error.value.code == "schema-mismatch"
    with pytest.raises(JobRejected, match="x is long in the stream and missing in the table"):
        writer(sink).write(pa.RecordBatch.from_pydict({"x": [1]}))


def test_a_null_in_a_required_column_is_named(sink: DeltaSink) -> None:
    DeltaTable.create(sink.path, pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    with pytest.raises(DataRejected, match="column n is required in the table, and a row has no value"):
        writer(sink).write(pa.RecordBatch.from_pydict({"n": pa.array([1, None], pa.int64())}))
    commit(sink, *prepared(writer(sink), 1, 1))
    assert table(sink) == [1]


def test_a_table_that_was_replaced_before_the_commit_is_named(sink: DeltaSink) -> None:
    committables = prepared(writer(sink), 1, 1)
    write_deltalake(sink.path, pa.table({"n": ["text"]}))
    with pytest.raises(JobRejected, match="n is long in the stream and string in the table"):
        commit(sink, *committables)


def test_other_partition_columns_are_named(sink: DeltaSink) -> None:
    write_deltalake(sink.path, pa.table({"n": [1], "p": [1]}), partition_by=["p"])
    with pytest.raises(JobRejected, match=r"partitioned by \['p'\], the sink by \[\]"):
        writer(sink).write(pa.RecordBatch.from_pydict({"n": [1], "p": [1]}))
    with pytest.raises(JobRejected, match="the stream has no column q"):
        writer(DeltaSink(sink.path, partition_by=("q",))).write(rows(1))
    with pytest.raises(JobRejected, match="column n is double; partitions are by"):
        writer(DeltaSink(sink.path, ("n",))).write(pa.RecordBatch.from_pydict({"n": [1.0], "m": [1]}))


def test_a_table_whose_writers_must_check_values_is_refused(sink: DeltaSink) -> None:
    write_deltalake(sink.path, pa.table({"n": pa.array([5], pa.int64())}))
    DeltaTable(sink.path).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(JobRejected, match=r"delta\.constraints\.positive"):
        writer(sink).write(rows(-1))


def test_columns_that_delta_lacks_and_values_that_do_not_fit_are_named(sink: DeltaSink) -> None:
    with pytest.raises(JobRejected, match=r"column d has type duration\[s\], which Delta lacks: cast it"):
        writer(sink).write(pa.RecordBatch.from_pydict({"d": pa.array([1], pa.duration("s"))}))
    with pytest.raises(DataRejected, match="a value does not fit its column of the Delta table"):
        writer(sink).write(pa.RecordBatch.from_pydict({"n": pa.array([2**63], pa.uint64())}))


def test_a_lost_or_shortened_file_fails_the_commit_as_a_whole(sink: DeltaSink) -> None:
    sink_writer = writer(sink)
    committables = prepared(sink_writer, 1, 1) + prepared(sink_writer, 2, 2)
    path = Path(sink.path) / committables[1]["files"][0]["path"]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(EnvironmentFailure, match=f"{path.name}: the file to commit has"):
        commit(sink, *committables)
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(EnvironmentFailure, match=f"{path.name}: the file is damaged"):
        commit(sink, *committables)
    path.unlink()
    assert sink.committer().missing(committables) == [str(path)]
    with pytest.raises(EnvironmentFailure, match="is neither pending nor committed"):
        commit(sink, *committables)
    path.write_bytes(content)
    assert commit(sink, *committables) == 2
    assert table(sink) == [1, 2]


def test_a_damaged_log_is_named(sink: DeltaSink) -> None:
    sink_writer = writer(sink)
    commit(sink, *prepared(sink_writer, 1, 1))
    for path in (Path(sink.path) / "_delta_log").glob("*.json"):
        path.write_text("{")
    with pytest.raises(EnvironmentFailure, match="the Delta table cannot be used"):
        commit(sink, *prepared(sink_writer, 2, 2))


@pytest.mark.parametrize(
    "change", [{"owner": "x"}, {"number": 7}, {"files": [{"path": "../a.parquet"}]}, {"files": None}]
)
def test_a_committable_that_this_sink_has_not_written_is_refused(sink: DeltaSink, change: dict[str, Any]) -> None:
    (good,) = prepared(writer(sink), 1, 1)
    with pytest.raises(JobRejected, match="names files to commit that this sink has not written"):
        commit(sink, good | change)


@pytest.mark.parametrize(("path", "partition_by"), [("", ()), ("s3://bucket/t", ()), ("/t", "day"), ("/t", ("a", "a"))])
def test_bad_settings_are_refused(path: str, partition_by: Any) -> None:
    with pytest.raises(JobRejected):
        DeltaSink(path, partition_by).check()


def test_masters_that_create_the_table_at_the_same_time_commit_once(tmp_path: Path) -> None:
    """A master that finds the table created reads which files were committed with it."""
    for number in range(20):
        sink = DeltaSink(str(tmp_path / str(number)))
        ready = prepared(writer(sink), 1, number)
        with ThreadPoolExecutor(4) as masters:
            counts = list(masters.map(lambda _, sink=sink, ready=ready: commit(sink, *ready), range(4)))
        assert sorted(counts) == [0, 0, 0, 1]
