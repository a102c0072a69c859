"""The Iceberg sink against real tables in catalogs of SQLite and Postgres.

Rows are read back twice: by pyiceberg's scan, and by a plain read of the files that the newest snapshot names. The
plain read applies neither filters nor field ids.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from runtime.connectors.tables.data_files import encode_part
from runtime.connectors.tables.iceberg import IcebergSink
from runtime.connectors.tables.iceberg_catalog import open_catalog
from runtime.core.job.ids import Token
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway, WeirError
from tests.connectors.two_phases import commit, prepared, rows, writer
from tests.iceberg import postgres_catalog, sqlite_catalog


def opened(of: IcebergSink) -> Any:
    return load_catalog(of.catalog_name, **of.catalog).load_table(of.table)


def files(of: IcebergSink) -> set[str]:
    return {path.name for path in (Path(of.catalog["warehouse"]) / of.table.replace(".", "/") / "data").glob("part-*")}


def table(of: IcebergSink) -> list[int]:
    table = opened(of)
    paths = table.inspect.files()["file_path"].to_pylist()
    plain = [n for path in paths for n in pq.read_table(path.removeprefix("file://"))["n"].to_pylist()]
    scanned: list[int] = table.scan().to_arrow()["n"].to_pylist()
    assert Counter(plain) == Counter(scanned)
    return sorted(scanned)


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    sink = IcebergSink("ns.rows", sqlite_catalog(tmp_path))
    sink.check()
    return sink


def stopped_before_commit(of: IcebergSink, act: Callable[[], Any]) -> Any:
    """A committer that is stopped once between its check and its commit, while `act` runs."""
    committer: Any = of.committer()
    append = committer._append

    def stopped(*arguments: Any) -> None:
        committer._append = append
        act()
        append(*arguments)

    committer._append = stopped
    return committer


# ---------------------------------------------------------------- two phases


def test_all_rows_of_a_checkpoint_appear_by_one_snapshot_that_may_be_repeated(sink: IcebergSink) -> None:
    """S1-06, S1-29, S1-38."""
    first_writer, second_writer = writer(sink), writer(sink, index=1)
    committables = prepared(first_writer, 5, 1, 2) + prepared(second_writer, 5, 3)
    assert table(sink) == []
    assert [each["rows"] for each in committables] == [2, 1]
    assert commit(sink, *committables, checkpoint=5) == 2
    assert table(sink) == [1, 2, 3]
    for token in (1, 2):
        assert commit(sink, *committables, token=token, checkpoint=5) == 0
        assert commit(sink, committables[1], token=token, checkpoint=5) == 0
    assert commit(sink, *prepared(first_writer, 6, 4), *prepared(second_writer, 6, 5), checkpoint=6) == 2
    first_writer.close()
    second_writer.close()
    assert table(sink) == [1, 2, 3, 4, 5]
    summaries = [snapshot.summary.additional_properties for snapshot in opened(sink).snapshots()]
    assert [(each["weir.job"], each["weir.sink"], each["weir.checkpoint"]) for each in summaries] == [
        ("job 1", "out", "5"),
        ("job 1", "out", "6"),
    ]


def test_a_checkpoint_without_rows_has_no_commit(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    sink_writer.write(rows())
    assert sink_writer.prepare(1) == ()
    assert commit(sink) == 0
    assert not load_catalog("default", **sink.catalog).table_exists(sink.table)


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_any_order_of_prepares_commits_and_repeats_adds_each_row_once(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    """S1-06: against a counter of committed rows; checkpoints pend, subsets repeat, snapshots expire, tokens rise."""
    of = IcebergSink("ns.rows", sqlite_catalog(tmp_path_factory.mktemp("iceberg")))
    writers = [writer(of, index=index) for index in range(2)]
    pending: list[Any] = []
    commits: list[Any] = []
    expected: Counter[int] = Counter()
    value, token = 0, 1
    for checkpoint in range(1, data.draw(st.integers(2, 6)) + 1):
        for sink_writer in writers:
            numbers = range(value, value + data.draw(st.integers(0, 3)))
            value = numbers.stop
            pending += prepared(sink_writer, checkpoint, *numbers)
            expected.update(dict.fromkeys(numbers, 1))
        if data.draw(st.booleans()):
            repeated: list[Any] = data.draw(st.lists(st.sampled_from(commits), unique_by=id)) if commits else []
            commit(of, *repeated, *pending, checkpoint=checkpoint, token=token)
            commits += pending
            pending = []
        if data.draw(st.booleans()):
            token += 1
            of.committer().clean("job 1", "out", Token(token), [*pending, *commits])
            writers = [writer(of, index=index, token=token) for index in range(2)]
        if data.draw(st.booleans()) and commits:
            expire_all_but_the_newest(of)
    commit(of, *pending, token=token)
    commit(of, *commits, token=token)
    assert expected == Counter(table(of) if expected else [])


def expire_all_but_the_newest(of: IcebergSink) -> None:
    table = opened(of)
    newest = table.current_snapshot().snapshot_id
    old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != newest]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def test_a_commit_whose_snapshot_has_expired_is_not_repeated(sink: IcebergSink) -> None:
    """S1-06: the table's properties record commits, not the summaries of snapshots."""
    sink_writer = writer(sink)
    committables = prepared(sink_writer, 1, 1) + prepared(sink_writer, 2, 2)
    commit(sink, *committables)
    commit(sink, *prepared(sink_writer, 3, 3), checkpoint=3)
    expire_all_but_the_newest(sink)
    assert len(opened(sink).snapshots()) == 1
    assert commit(sink, *committables, token=2) == 0
    assert table(sink) == [1, 2, 3]


def test_concurrent_commits_of_the_same_files_add_them_once(sink: IcebergSink) -> None:
    """A zombie commits at the same time as its successor: the catalog refuses the second commit on one snapshot."""
    sink_writer = writer(sink)
    assert commit(sink, *prepared(sink_writer, 1, 0)) == 1
    for checkpoint in range(2, 6):
        committables = prepared(sink_writer, checkpoint, checkpoint)
        barrier = threading.Barrier(4)
        counts: list[int] = []

        def act(committables: list[Any] = committables, barrier: Any = barrier, counts: Any = counts) -> None:
            committer = sink.committer()
            barrier.wait()
            counts.append(commit(committer, *committables))

        threads = [threading.Thread(target=act) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(counts) == [0, 0, 0, 1]
    assert table(sink) == [0, 2, 3, 4, 5]


def test_a_zombie_that_has_read_the_table_before_its_successor_commits_adds_nothing(sink: IcebergSink) -> None:
    """S1-11: the older attempt is stopped between its check and its commit."""
    sink_writer = writer(sink)
    commit(sink, *prepared(sink_writer, 1, 0))
    committables = prepared(sink_writer, 2, 1)
    zombie = stopped_before_commit(sink, lambda: commit(sink, *committables, token=2))
    with pytest.raises(JobRejected, match="attempt 1 must not commit: attempt 2 of the job has written"):
        commit(zombie, *committables)
    assert table(sink) == [0, 1]


def test_a_commit_of_an_older_attempt_is_refused_from_the_start_of_its_successor(sink: IcebergSink) -> None:
    """S1-11: also if both attempts have nothing else to commit."""
    sink_writer = writer(sink)
    first = prepared(sink_writer, 1, 1)
    commit(sink, *first)
    late = prepared(sink_writer, 2, 2)
    assert sink.committer().clean("job 1", "out", Token(2), late) == 0
    with pytest.raises(JobRejected, match=r"remove the table's property weir\.commits"):
        commit(sink, *late)
    assert commit(sink, *late, token=2) == 1
    assert table(sink) == [1, 2]


def test_commits_of_foreign_writers_in_between_lose_no_row(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    for checkpoint in range(3):
        commit(sink, *prepared(sink_writer, checkpoint, checkpoint), checkpoint=checkpoint)
        opened(sink).append(pa.table({"n": pa.array([100], pa.int64())}))
    assert table(sink) == [0, 1, 2, 100, 100, 100]


def test_a_foreign_commit_between_check_and_commit_is_repeated_on_top(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    commit(sink, *prepared(sink_writer, 1, 0))
    foreign = pa.table({"n": pa.array([100], pa.int64())})
    committer = stopped_before_commit(sink, lambda: opened(sink).append(foreign))
    assert commit(committer, *prepared(sink_writer, 2, 1), checkpoint=2) == 1
    assert table(sink) == [0, 1, 100]


def test_two_runs_with_equal_names_and_tokens_both_append(sink: IcebergSink) -> None:
    for number in (1, 2):
        assert commit(sink, *prepared(writer(sink), 1, number)) == 1
    assert table(sink) == [1, 2]


# ---------------------------------------------------------------- leftovers


def test_the_clean_up_removes_leftovers_of_this_sink_only_and_keeps_what_manifests_name(sink: IcebergSink) -> None:
    """S1-53, S1-54."""
    sink_writer, other, newer = writer(sink), writer(sink, uid="other"), writer(sink, token=2)
    committed = prepared(sink_writer, 1, 1)
    commit(sink, *committed)
    leftover, survivors = prepared(sink_writer, 2, 2), prepared(writer(sink, index=2), 2, 3)
    foreign, later = prepared(other, 2, 4), prepared(newer, 2, 5)
    before = files(sink)
    assert sink.committer().clean("job 1", "out", Token(2), [*committed, *survivors, {"kind": "another sink"}]) == 1
    assert before - files(sink) == {leftover[0]["files"][0]["path"]}
    assert sink.committer().clean("job 1", "out", Token(2), survivors) == 0
    assert commit(sink, *committed, *survivors, *later, token=2) == 2
    assert commit(sink, *foreign, token=2) == 1
    assert table(sink) == [1, 3, 4, 5]


def test_leftovers_of_a_table_without_commits_are_removed(sink: IcebergSink) -> None:
    (leftover,) = prepared(writer(sink), 1, 1)
    assert sink.committer().clean("job 1", "out", Token(2), ()) == 1
    assert files(sink) == set()
    with pytest.raises(JobRejected, match="attempt 1 must not commit"):
        commit(sink, leftover)


def test_writers_of_older_attempts_are_forgotten_unless_a_manifest_names_them(sink: IcebergSink) -> None:
    """The record in the table does not grow with each attempt; a forgotten commit is refused, never repeated."""
    old = prepared(writer(sink), 1, 1)
    commit(sink, *old)
    survivors = prepared(writer(sink, token=2), 2, 2)
    for token in range(2, 6):
        sink.committer().clean("job 1", "out", Token(token), survivors)
        commit(sink, *prepared(writer(sink, token=token), token, token), token=token)
    record = json.loads(opened(sink).properties[f"weir.commits.{encode_part('job 1')}.out"])
    assert sorted(record["numbers"].values()) == [0, 1]
    assert commit(sink, *survivors, token=5) == 1
    with pytest.raises(JobRejected, match="no longer records whether output of attempt 1 was committed"):
        commit(sink, *old, token=5)
    assert table(sink) == [1, 2, 2, 3, 4, 5]


def test_files_of_the_table_survive_the_loss_of_the_record(sink: IcebergSink) -> None:
    """An administrator removes the property; the clean-up then finds the files named by the table."""
    committed = prepared(writer(sink), 1, 1)
    commit(sink, *committed)
    leftover = prepared(writer(sink, index=1), 2, 2)
    with opened(sink).transaction() as change:
        change.remove_properties(f"weir.commits.{encode_part('job 1')}.out")
    assert sink.committer().clean("job 1", "out", Token(2), ()) == 1
    assert not (Path(leftover[0]["folder"]) / leftover[0]["files"][0]["path"]).exists()
    assert table(sink) == [1]


def test_a_file_that_the_clean_up_has_removed_can_no_longer_be_committed(sink: IcebergSink) -> None:
    """S1-11: a zombie that was stopped between its check of the files and its commit."""
    commit(sink, *prepared(writer(sink), 1, 1))
    leftover = prepared(writer(sink, index=1), 2, 2)
    zombie = stopped_before_commit(sink, lambda: sink.committer().clean("job 1", "out", Token(2), ()))
    with pytest.raises(JobRejected, match="attempt 1 must not commit"):
        commit(zombie, *leftover)
    assert table(sink) == [1]


def test_an_abandoned_file_in_progress_is_deleted(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    sink_writer.write(rows(1))
    assert len(files(sink)) == 1
    sink_writer.close()
    assert files(sink) == set()


def test_a_savepoint_for_another_table_is_refused_unless_its_output_is_committed(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    committed, pending = prepared(sink_writer, 1, 1), prepared(sink_writer, 2, 2)
    commit(sink, *committed)
    other = IcebergSink("ns.other", sink.catalog)
    assert commit(other, *committed, token=2) == 0
    with pytest.raises(JobRejected, match=r"is pending for the table ns\.rows, not for ns\.other"):
        commit(other, *committed, *pending, token=2)
    load_catalog("default", **sink.catalog).drop_table("ns.rows")
    with pytest.raises(JobRejected, match=r"ns\.rows, which was dropped or replaced"):
        commit(sink, *pending)


# ---------------------------------------------------------------- partitions, types and statistics


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(["a", "b/c", "d=e %", "", None]),
    "day": st.none() | st.dates(date(1969, 12, 30), date(1970, 1, 2)),
    "flag": st.booleans() | st.none(),
    "number": st.integers(-1, 1),
    "at": st.none() | st.integers(-7_200, 7_200).map(lambda second: datetime.fromtimestamp(second, UTC)),
}
TYPES = {
    "text": pa.string(), "day": pa.date32(), "flag": pa.bool_(), "number": pa.int32(), "at": pa.timestamp("us", "UTC"),
}  # fmt: skip
PARTITIONS = ["text", "day", "flag", "number", "days(at)", "hours(at)", "months(at)", "years(day)"]


@settings(max_examples=8, deadline=None)
@given(
    values=st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=12),
    by=st.lists(st.sampled_from(PARTITIONS), unique=True, max_size=3),
)
def test_rows_of_every_partition_are_read_back(
    values: list[dict[str, Any]], by: list[str], tmp_path_factory: Any
) -> None:
    """A scan with a filter prunes by partition values and statistics, and finds the same rows as Arrow."""
    of = IcebergSink("ns.rows", sqlite_catalog(tmp_path_factory.mktemp("iceberg")), partition_by=by)
    of.check()
    batch = pa.RecordBatch.from_pylist([{"n": n} | row for n, row in enumerate(values)]).cast(
        pa.schema([("n", pa.int64()), *((name, TYPES[name]) for name in values[0])])
    )
    each = writer(of)
    each.write(batch)
    commit(of, *each.prepare(1))
    read = opened(of)
    assert read.scan().to_arrow().sort_by("n").select(batch.schema.names).to_pylist() == batch.to_pylist()
    for row in values[:3]:
        for name, value in row.items():
            if value is not None:
                literal = value.isoformat() if name in ("day", "at") else value
                expression = f"{name} = {literal!r}" if isinstance(literal, str) else f"{name} = {literal}"
                scanned = sorted(read.scan(row_filter=expression).to_arrow()["n"].to_pylist())
                assert scanned == sorted(other["n"] for other in batch.to_pylist() if other[name] == value), expression


def test_files_have_field_ids_and_statistics(sink: IcebergSink) -> None:
    """Readers find columns by field ids and skip files by bounds."""
    sink_writer = writer(sink)
    for checkpoint in range(1, 4):
        commit(sink, *prepared(sink_writer, checkpoint, checkpoint, checkpoint + 10), checkpoint=checkpoint)
    read = opened(sink)
    bounds = sorted(
        (m["n"]["lower_bound"], m["n"]["upper_bound"]) for m in read.inspect.files()["readable_metrics"].to_pylist()
    )
    assert bounds == [(1, 11), (2, 12), (3, 13)]
    assert [len(list(read.scan(f"n = {n}").plan_files())) for n in (1, 2, 3, 13)] == [1, 2, 3, 1]
    path = read.inspect.files()["file_path"][0].as_py().removeprefix("file://")
    assert pq.read_schema(path).field("n").metadata == {b"PARQUET:field_id": b"1"}


def test_a_table_that_gets_a_column_and_renames_another_stays_readable(sink: IcebergSink) -> None:
    """Pending files of the former columns are committed; a running writer must be restarted."""
    sink_writer = writer(sink)
    committables = prepared(sink_writer, 1, 1)
    with opened(sink).update_schema() as change:
        change.add_column("more", StringType())
        change.rename_column("n", "number")
    assert commit(sink, *committables) == 1
    assert opened(sink).scan().to_arrow().to_pylist() == [{"number": 1, "more": None}]
    assert prepared(sink_writer, 2, 2)[0]["schema"] == 0
    with pytest.raises(JobRejected, match="n is long in the stream and missing in the table"):
        writer(sink).write(rows(1))


def test_types_become_those_of_iceberg(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    moment = pa.array([1_000], pa.timestamp("ms"))
    columns = {"t": moment, "z": moment.cast(pa.timestamp("ms", "UTC")), "d": pa.array(["x"]).dictionary_encode(),
               "u": pa.array([7], pa.uint32()), "l": pa.array([[1]], pa.list_(pa.int32())),
               "s": pa.array([{"a": 1, "b": "x"}])}  # fmt: skip
    sink_writer.write(pa.RecordBatch.from_pydict(columns))
    commit(sink, *sink_writer.prepare(1))
    assert opened(sink).scan().to_arrow().to_pylist() == pa.table(columns).to_pylist()


# ---------------------------------------------------------------- errors


def create(of: IcebergSink, *fields: NestedField) -> None:
    catalog = load_catalog("default", **of.catalog)
    catalog.create_namespace_if_not_exists("ns")
    catalog.create_table(of.table, Schema(*fields))


def test_a_table_with_other_columns_is_named_before_a_file_is_written(sink: IcebergSink) -> None:
    create(sink, NestedField(1, "n", StringType()), NestedField(2, "m", LongType(), required=True))
    with pytest.raises(JobRejected, match="n is long in the stream and string in the table; m is required") as error:
        writer(sink).write(rows(1))
    assert error.value.code == "schema-mismatch"
    with pytest.raises(JobRejected, match="x is long in the stream and missing in the table"):
        writer(sink).write(pa.RecordBatch.from_pydict({"x": [1]}))
    assert files(sink) == set()


def test_a_null_in_a_required_column_is_named(sink: IcebergSink) -> None:
    create(sink, NestedField(1, "n", LongType(), required=True))
    with pytest.raises(DataRejected, match="column n is required in the table, and a row has no value"):
        writer(sink).write(pa.RecordBatch.from_pydict({"n": pa.array([1, None], pa.int64())}))


def test_bad_partitions_are_named(sink: IcebergSink) -> None:
    with pytest.raises(JobRejected, match="the stream has no column q; it has n"):
        writer(IcebergSink("ns.a", sink.catalog, partition_by=("q",))).write(rows(1))
    with pytest.raises(JobRejected, match="column n is double: no partitions by identity"):
        writer(IcebergSink("ns.b", sink.catalog, partition_by=("n",))).write(pa.RecordBatch.from_pydict({"n": [1.0]}))
    with pytest.raises(JobRejected, match="column n is int64: no partitions by hour"):
        writer(IcebergSink("ns.c", sink.catalog, partition_by=("hours(n)",))).write(rows(1))
    days = pa.RecordBatch.from_pydict({"at": [date(2020, 1, 1)], "at_day": [1], "deep": [{"n": 1}]})
    with pytest.raises(JobRejected, match=r"names the partition days\(at\) at_day, which is a column"):
        writer(IcebergSink("ns.d", sink.catalog, partition_by=("days(at)",))).write(days)
    with pytest.raises(JobRejected, match=r"the stream has no column deep\.n; it has at, at_day, deep"):
        writer(IcebergSink("ns.e", sink.catalog, partition_by=("deep.n",))).write(days)
    catalog = load_catalog(sink.catalog_name, **sink.catalog)
    assert [name for name in "abcde" if catalog.table_exists(f"ns.{name}")] == []
    commit(sink, *prepared(writer(sink), 1, 1))
    with pytest.raises(JobRejected, match=r"is partitioned by \[\], the sink by \['n'\]"):
        writer(IcebergSink("ns.rows", sink.catalog, partition_by=("n",))).write(rows(1))


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()])
@pytest.mark.parametrize("partition_by", [(), ("years(at)",)])
def test_times_that_python_does_not_have_are_committed(
    sink: IcebergSink, kind: pa.DataType, partition_by: tuple[str, ...]
) -> None:
    """Their checkpoint is recorded before the commit reads the statistics of the file."""
    of, limit = IcebergSink("ns.times", sink.catalog, partition_by=partition_by), 2 ** (kind.bit_width - 1)
    numbers = pa.array([-limit, 0, None, limit - 1], pa.int32() if kind.bit_width == 32 else pa.int64())
    sink_writer = writer(of)
    sink_writer.write(pa.RecordBatch.from_arrays([pa.array([1, 2, 3, 4]), numbers.view(kind)], names=["n", "at"]))
    assert commit(of, *sink_writer.prepare(1)) == 1
    times = opened(of).scan().to_arrow().sort_by("n")["at"].cast(numbers.type)
    assert times.to_pylist() == numbers.to_pylist()


def test_a_decimal_that_iceberg_cannot_read_back_is_named_before_a_table_exists(sink: IcebergSink) -> None:
    column = pa.array([1200], pa.decimal128(10, 0)).cast(pa.decimal128(10, -2))
    with pytest.raises(JobRejected, match=r"column n has type decimal128\(10, -2\), which Iceberg lacks"):
        writer(sink).write(pa.RecordBatch.from_arrays([column], names=["n"]))


def test_files_of_a_former_partitioning_are_refused_by_name(sink: IcebergSink) -> None:
    committables = prepared(writer(sink), 1, 1)
    with opened(sink).update_spec() as change:
        change.add_identity("n")
    with pytest.raises(JobRejected, match="was partitioned otherwise when files for a checkpoint were written"):
        commit(sink, *committables)


def test_columns_that_iceberg_lacks_and_values_that_do_not_fit_are_named(sink: IcebergSink) -> None:
    with pytest.raises(JobRejected, match=r"column d has type duration\[s\], which Iceberg lacks: cast it"):
        writer(sink).write(pa.RecordBatch.from_pydict({"d": pa.array([1], pa.duration("s"))}))
    with pytest.raises(DataRejected, match="a value does not fit its column of the table"):
        writer(sink).write(pa.RecordBatch.from_pydict({"n": pa.array([2**63], pa.uint64())}))


def test_a_lost_or_shortened_file_fails_the_commit_as_a_whole(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    committables = prepared(sink_writer, 1, 1) + prepared(sink_writer, 2, 2)
    path = Path(committables[1]["folder"]) / committables[1]["files"][0]["path"]
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
    assert sink.committer().missing(committables) == []
    assert table(sink) == [1, 2]


def test_damaged_metadata_is_named(sink: IcebergSink) -> None:
    sink_writer = writer(sink)
    commit(sink, *prepared(sink_writer, 1, 1))
    for path in (Path(sink.catalog["warehouse"]) / "ns" / "rows" / "metadata").glob("*.json"):
        path.write_text("{")
    with pytest.raises(EnvironmentFailure, match=r"Iceberg: ns\.rows: "):
        commit(sink, *prepared(sink_writer, 2, 2))


@pytest.mark.parametrize(
    "change", [{"owner": "x"}, {"number": 7}, {"files": [{"path": "../a.parquet"}]}, {"files": None}]
)
def test_a_committable_that_this_sink_has_not_written_is_refused(sink: IcebergSink, change: dict[str, Any]) -> None:
    (good,) = prepared(writer(sink), 1, 1)
    with pytest.raises(JobRejected, match="names files to commit that this sink has not written"):
        commit(sink, good | change)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("rows", {}),
        ("", {}),
        ("ns.rows", {"catalog": {}}),
        ("ns.rows", {"catalog": {"uri": "postgresql://u:literal@h/d"}}),
        ("ns.rows", {"catalog": {"token": "literal"}}),
        ("ns.rows", {"partition_by": "day"}),
        ("ns.rows", {"partition_by": ("a", "a")}),
        ("ns.rows", {"partition_by": ("weeks(a)",)}),
    ],
)
def test_bad_settings_are_refused(table: str, options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(JobRejected) as error:
        IcebergSink(**{"table": table, "catalog": sqlite_catalog(tmp_path)} | options).check()
    assert "literal" not in error.value.detail


# ---------------------------------------------------------------- catalogs


@pytest.fixture
def postgres(database_url: str, tmp_path: Path) -> Iterator[IcebergSink]:
    with postgres_catalog(database_url, tmp_path) as catalog:
        yield IcebergSink("ns.rows", catalog, catalog_name=tmp_path.name)


def test_several_slots_create_the_catalog_the_namespace_and_the_table_together(postgres: IcebergSink) -> None:
    """The catalog in Postgres refuses the second creation by a unique key."""
    barrier, failures, committables = threading.Barrier(4), list[BaseException](), list[Any]()

    def act(index: int) -> None:
        try:
            barrier.wait()
            committables.extend(prepared(writer(postgres, index=index), 1, index))
        except WeirError as error:
            failures.append(error)

    threads = [threading.Thread(target=act, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert commit(postgres, *committables) == 4
    with open_catalog(postgres.catalog_name, postgres.catalog) as catalog:
        assert sorted(catalog.load_table("ns.rows").scan().to_arrow()["n"].to_pylist()) == [0, 1, 2, 3]


def test_wrong_credentials_and_an_absent_server_are_told_apart_and_no_secret_is_shown(
    postgres: IcebergSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that trusts local users refuses an unknown database instead."""
    monkeypatch.setenv("WEIR_SECRET_WRONG", "s3cr@t/?")
    base, _, _ = postgres.catalog["uri"].rpartition("/")
    host = base.rpartition("@")[2]
    for uri, kind in (
        (f"postgresql+psycopg://weir:${{secret:WRONG}}@{host}/no_such_database", JobRejected),
        ("postgresql+psycopg://weir:${secret:WRONG}@127.0.0.1:1/weir", TargetAway),
    ):
        wrong = IcebergSink("ns.rows", {**postgres.catalog, "uri": uri})
        wrong.check()
        with pytest.raises(kind) as error:
            writer(wrong)
        assert "s3cr" not in str(error.value)
        assert "s3cr" not in repr(wrong)
    with pytest.raises(JobRejected, match="'NOT_SET' is not set on this host"):
        writer(IcebergSink("ns.rows", {"type": "sql", "uri": "postgresql+psycopg://weir:${secret:NOT_SET}@h/d"}))
    with pytest.raises(JobRejected, match="must be an address"):
        writer(IcebergSink("ns.rows", {"type": "nonsense"}))
