"""Partition columns: values from folder names, typed, pruned by a filter, and read back from our own sinks."""

import io
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.commit_log import LOG_FOLDER, CommitLog
from runtime.connectors.formats import JsonLinesFormat, LineFormat, ParquetFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.parquet import ParquetSource
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import source_with_input
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.launch.local import run_local
from tests.contracts.files import Reading, drop

DAY = pc.field("day")


def lines(folder: Path, **arguments: Any) -> DirectorySource:
    return DirectorySource(str(folder), LineFormat(), bounded=True, **arguments)


def rows(source: Any) -> list[dict[str, Any]]:
    return Reading(source_with_input(source, source.list_input())).rows()


def test_types_are_inferred_from_all_folders_and_nulls_and_escapes_are_read(tmp_path: Path) -> None:
    for day, number, text in (
        ("2024-01-01", "7", "a%3Ab"),
        ("__HIVE_DEFAULT_PARTITION__", "-8", "1"),
        ("2024-02-29", "3000000000", "__HIVE_DEFAULT_PARTITION__"),
    ):
        drop(tmp_path / f"day={day}" / f"n={number}" / f"t={text}", "f", f"{number}\n")
    source = lines(tmp_path, partition_by=("day", "n", "t"))
    source.check()
    assert source.output_columns() is None
    result = rows(source)
    assert sorted(map(str, result)) == sorted(
        map(
            str,
            (
                {"line": "7", "day": date(2024, 1, 1), "n": 7, "t": "a:b"},
                {"line": "-8", "day": None, "n": -8, "t": "1"},
                {"line": "3000000000", "day": date(2024, 2, 29), "n": 3_000_000_000, "t": None},
            ),
        )
    )


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=st.lists(
        st.one_of(
            st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=4),
            st.lists(
                st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9), min_size=1, max_size=4
            ),
            st.lists(st.dates(date(1000, 1, 1)), min_size=1, max_size=4),
        ).map(lambda values: [None, *values]),
        min_size=1,
        max_size=2,
    )
)
def test_output_of_our_own_sink_is_read_back(
    columns: list[list[Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With declared types, exactly; the empty text is null, as in Hive."""
    folder = tmp_path_factory.mktemp("out")
    types = {int: pa.int64(), str: pa.string(), date: pa.date32()}
    schema = pa.schema([(f"c{number}", types[type(values[1])]) for number, values in enumerate(columns)])
    table = pa.Table.from_pylist(
        [
            {"id": number} | {f"c{place}": values[number % len(values)] for place, values in enumerate(columns)}
            for number in range(12)
        ],
        pa.schema([pa.field("id", pa.int64()), *schema]),
    )
    source_folder = tmp_path_factory.mktemp("in")
    pq.write_table(table, source_folder / "a.parquet")
    flow = Dataflow("copy")
    flow.source("in", ParquetSource(str(source_folder), table.schema)).sink(
        "out", ParquetSink(str(folder), partition_by=tuple(schema.names))
    )
    run_local(flow, parallelism=1, storage=str(tmp_path_factory.mktemp("state")))
    source = ParquetSource(str(folder), pa.schema([("id", pa.int64())]), partition_by=schema)
    assert source.output_columns() == table.schema
    expected = [{name: None if value == "" else value for name, value in row.items()} for row in table.to_pylist()]
    assert sorted(rows(source), key=lambda row: int(row["id"])) == expected


def test_a_filter_skips_folders(tmp_path: Path) -> None:
    """The file of the other folder is no Parquet."""
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=2").mkdir()
    (tmp_path / "day=1" / "a").write_bytes(b"nonsense")
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "day=2" / "b")
    for schema, condition in (
        (None, DAY == 2),
        (None, DAY > 1),
        (pa.schema([("id", pa.int64())]), (DAY == 2) & (pc.field("id") < 100)),
        (pa.schema([("id", pa.int64())]), (DAY == 2) | ((DAY == 1) & ~DAY.is_valid())),
    ):
        source = ParquetSource(str(tmp_path), schema, partition_by=("day",), filter=condition, columns=("id", "day"))
        assert [row["id"] for row in rows(source)] == list(range(9))
    with pytest.raises(DataRejected, match=r"/day=1/a: it is not a readable Parquet file"):
        rows(ParquetSource(str(tmp_path), partition_by=("day",), filter=DAY < 2))


def test_columns_and_filters_of_partitions_agree_with_arrow(tmp_path: Path) -> None:
    table = pa.table({"id": range(60), "day": [number % 4 for number in range(60)], "x": [1.5] * 60})
    ds.write_dataset(
        table, tmp_path, format="parquet", partitioning=ds.partitioning(pa.schema([("day", pa.int64())]), flavor="hive")
    )
    for condition in (DAY == 3, (DAY >= 2) & (pc.field("id") < 30), (pc.field("id") < 5) | (DAY == 0), DAY > 9):
        source = ParquetSource(str(tmp_path), columns=("day", "id"), filter=condition, partition_by=("day",))
        expected = table.filter(condition).select(["day", "id"]).to_pylist()
        assert sorted(map(str, rows(source))) == sorted(map(str, expected))
    only = ParquetSource(str(tmp_path), columns=("day",), partition_by=("day",))
    assert sorted(row["day"] for row in rows(only)) == sorted(table["day"].to_pylist())


def test_a_watched_folder_with_declared_types_takes_new_folders(tmp_path: Path) -> None:
    day = pa.schema([pa.field("day", pa.date32())])
    reading = Reading(DirectorySource(str(tmp_path), LineFormat(), partition_by=day))
    assert reading.rows() == []
    drop(tmp_path / "day=2024-01-01", "a", "1\n")
    assert reading.rows() == [{"line": "1", "day": date(2024, 1, 1)}]
    drop(tmp_path / "day=2024-01-02", "a", "2\n")
    drop(tmp_path / "day=2024-01-01", "b", "3\n")
    assert [row["line"] for row in reading.rows()] == ["3", "2"]
    assert (
        Reading(
            DirectorySource(str(tmp_path), LineFormat(), partition_by=day),
            store=reading.store,
            snapshots=[reading.snapshot("chk")],
        ).rows()
        == []
    )


def test_a_subtask_whose_files_the_filter_leaves_out_is_idle(tmp_path: Path) -> None:
    """It would hold back the watermark for ever."""
    source = DirectorySource(
        str(tmp_path), LineFormat(), partition_by=pa.schema([("day", pa.int32())]), filter=DAY == 1
    )
    reading = Reading(source)
    drop(tmp_path / "day=2", "a", "1\n")
    assert reading.rows() == []
    assert reading.reader.idle
    drop(tmp_path / "day=1", "a", "1\n")
    assert len(reading.rows()) == 1
    assert not reading.reader.idle


def test_inferred_types_stay_after_a_restore(tmp_path: Path) -> None:
    drop(tmp_path / "n=1", "a", "1\n2\n")
    source = lines(tmp_path, partition_by=("n",))
    first = Reading(source)
    assert first.poll(1) is not None
    snapshot = first.snapshot("chk")
    drop(tmp_path / "n=text", "a", "3\n")
    assert Reading(source, store=first.store, snapshots=[snapshot]).rows() == [{"line": "2", "n": 1}]
    with pytest.raises(JobRejected, match="the savepoint has no type of the partition column 'm'") as error:
        Reading(lines(tmp_path, partition_by=("n", "m")), store=first.store, snapshots=[snapshot])
    assert error.value.field == "partition_by"


def test_only_committed_files_of_a_sink_are_read(tmp_path: Path) -> None:
    """A visible file without an entry in the commit log belongs to a checkpoint that is being committed."""
    folder, state = tmp_path / "out", tmp_path / "state"
    pq.write_table(pa.table({"id": range(6), "k": [1, 2] * 3}), tmp_path / "a.parquet")
    drop(tmp_path / "in", "a.parquet", (tmp_path / "a.parquet").read_bytes())
    flow = Dataflow("copy")
    flow.source("in", ParquetSource(str(tmp_path / "in"))).sink("out", ParquetSink(str(folder), partition_by=("k",)))
    run_local(flow, parallelism=1, storage=str(state))
    (job, sink), *_ = CommitLog(folder).sinks()
    (epoch,) = [item for item in CommitLog(folder).epochs(job, sink) if item.files]
    name = epoch.files[0].name
    later = name.rpartition("-")[0] + "-999.parquet"
    (folder / later).write_bytes((folder / name).read_bytes())
    drop(folder / "k=1", "part-foreign.parquet", (folder / name).read_bytes())
    source = ParquetSource(str(folder), columns=("id",), partition_by=("k",))
    expected = sorted([*range(6), *pq.ParquetFile(folder / name).read()["id"].to_pylist()])
    assert sorted(row["id"] for row in rows(source)) == expected, "the file of another writer counts"
    watching = Reading(DirectorySource(str(folder), ParquetFormat(), partition_by=pa.schema([("k", pa.int32())])))
    assert len(watching.rows()) == len(expected)
    log = CommitLog(folder)
    log.append_epoch(
        type(epoch)(
            log=epoch.log,
            job=job,
            sink=sink,
            number=epoch.number + 1,
            token=epoch.token,
            checkpoint=99,
            highest=(epoch.token, 99),
            files=(type(epoch.files[0])(later, 1, 3),),
        )
    )
    assert len(watching.rows()) == 3, "once its checkpoint is committed"
    assert LOG_FOLDER not in {path.name for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("place", "partition_by", "text"),
    [
        ("a", ("day",), r"/a: the file lies in no folder day=…"),
        ("day=1/a", ("day", "hour"), r"/day=1/a: the file lies in no folder hour=…"),
        ("hour=1/a", ("day",), r"/hour=1: partition_by needs folders day=… here"),
        ("day/a", ("day",), r"/day: partition_by needs folders day=… here"),
        ("day=1/a", (), r"/day=1: this is a folder of the partition column 'day', which partition_by lacks"),
        ("day=1/hour=2/a", ("day",), r"/day=1/hour=2: this is a folder of the partition column 'hour'"),
        ("day=x/a", pa.schema([("day", pa.int32())]), r"day=x/a: 'x' is no int32, which partition_by declares"),
        (
            "day=__HIVE_DEFAULT_PARTITION__/a",
            pa.schema([pa.field("day", pa.int32(), nullable=False)]),
            r"the partition column 'day' has no value",
        ),
    ],
)
def test_misplaced_files_are_named(tmp_path: Path, place: str, partition_by: Any, text: str) -> None:
    drop((tmp_path / place).parent, "a", "1\n")
    with pytest.raises(DataRejected, match=text):
        rows(lines(tmp_path, partition_by=partition_by))


def test_a_partition_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    for day in "12":
        drop(tmp_path / f"day={day}", "a", "1\n")
    first = Reading(lines(tmp_path, partition_by=("day",)))
    first.poll()
    snapshot = first.snapshot("chk")
    (tmp_path / "day=2" / "a").unlink()
    (tmp_path / "day=2").rmdir()
    successor = Reading(lines(tmp_path, partition_by=("day",)), store=first.store, snapshots=[snapshot])
    with pytest.raises(EnvironmentFailure, match=r"/day=2/a: the file is gone"):
        successor.poll()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partition_by": ("day",), "bounded": False}, "an unbounded source sees later folders too"),
        ({"partition_by": "day"}, "must be a tuple of columns"),
        ({"partition_by": ("id",)}, "'id' is a column of the format as well"),
        ({"partition_by": pa.schema([("day", pa.float64())])}, "'day' is double: a partition column is text"),
        ({"partition_by": ("_day",)}, "cannot be a partition column"),
    ],
)
def test_bad_settings_are_refused(options: Any, text: str) -> None:
    source = DirectorySource("/in", JsonLinesFormat(pa.schema([("id", pa.int64())])), **({"bounded": True} | options))
    with pytest.raises(JobRejected, match=text) as error:
        source.check()
    assert error.value.field == "partition_by"


@pytest.mark.parametrize("text", ["+7", "١٢"])
def test_only_texts_that_are_read_as_integers_are_inferred_as_integers(tmp_path: Path, text: str) -> None:
    drop(tmp_path / f"n={text}", "a", "x")
    assert rows(lines(tmp_path, partition_by=("n",))) == [{"line": "x", "n": text}]


def test_integers_and_texts_are_inferred_as_by_pyarrow(tmp_path: Path) -> None:
    """pyarrow's discovery knows int32 and text only."""
    for value in ("1", "02", "x y"):
        data = io.BytesIO()
        pq.write_table(pa.table({"id": [1]}), data)
        drop(tmp_path / "n=1" / f"t={value}", "a.parquet", data.getvalue())
    schema = ds.dataset(tmp_path, partitioning="hive").schema
    source = ParquetSource(str(tmp_path), partition_by=("n", "t"))
    listed = source.list_input()
    assert listed is not None
    listing = source.with_input(listed).listing
    assert listing is not None
    assert listing.partition_types == {name: str(schema.field(name).type) for name in ("n", "t")}
