"""Columns and filters of files: exact against Arrow's own tables, and pushed down as far as a format can."""

import io
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.formats import ArrowFormat, CsvFormat, Format, JsonLinesFormat, LineFormat, ParquetFormat
from runtime.connectors.sources.directory import MALFORMED_RECORDS, DirectorySource
from runtime.connectors.sources.parquet import ParquetSource
from runtime.errors import DataRejected, JobRejected
from tests.contracts.files import Reading, drop
from tests.example_counts import examples

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("text", pa.string()), ("ok", pa.bool_())])
X, ID, TEXT = pc.field("x"), pc.field("id"), pc.field("text")
FILTERS = [
    ID > 20,
    (ID > 5) & (X < 1.5),
    (ID < 3) | (TEXT == "b"),
    ~(X < 1.0),  # true for NaN, which statistics ignore
    X != 1.0,
    X >= 1.0,
    pc.is_nan(X),
    X.is_null(),
    TEXT.is_valid() & ~pc.field("ok"),
    TEXT.isin(["a", "c"]),
    (X < 1.0) == False,  # noqa: E712
    pc.if_else(X < 1.0, False, True),
    ID.cast(pa.float64()) > X,
]


def table_of(random_: random.Random) -> pa.Table:
    values = [0.0, 1.0, 2.0, math.nan, None]
    start = random_.randrange(30)
    return pa.table(
        {
            "id": sorted(random_.choices(range(start, start + 20), k=30)),
            "x": random_.choices(random_.choices(values, k=random_.randrange(1, 4)), k=30),
            "text": random_.choices(["a", "b", "c", None], k=30),
            "ok": random_.choices([True, False, None], k=30),
        },
        SCHEMA,
    )


def parquet(table: pa.Table, rows: int = 4) -> bytes:
    data = io.BytesIO()
    pq.write_table(table, data, row_group_size=rows)
    return data.getvalue()


def stream(table: pa.Table) -> bytes:
    data = io.BytesIO()
    with pa.ipc.new_stream(data, table.schema) as writer:
        writer.write_table(table, 7)
    return data.getvalue()


def json_lines(table: pa.Table) -> bytes:
    import json

    rows = (row for row in table.to_pylist())
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


KINDS: dict[str, tuple[Any, Format]] = {
    "parquet": (parquet, ParquetFormat()),
    "parquet with a schema": (parquet, ParquetFormat(SCHEMA)),
    "arrow": (stream, ArrowFormat()),
    "json lines": (json_lines, JsonLinesFormat(SCHEMA)),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_columns_and_filter_are_exact(kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Against `pa.Table.filter`, with null, NaN, and a restore between any two rows."""
    random_, folder = random.Random(seed), tmp_path_factory.mktemp("in")
    make, format_ = KINDS[kind]
    table = table_of(random_)
    if "json" in kind:  # JSON has no NaN
        table = table.set_column(1, "x", pc.if_else(pc.is_nan(table["x"]), None, table["x"]))
    drop(folder, "a", make(table))
    condition = random_.choice(FILTERS)
    columns = tuple(random_.sample(SCHEMA.names, random_.randrange(1, 5))) if random_.random() < 0.7 else None
    source = DirectorySource(str(folder), format_, bounded=True, columns=columns, filter=condition, split_bytes=None)
    source.check()
    first = Reading(source)
    polls = [batch.to_pylist() for _ in range(random_.randrange(5)) if (batch := first.poll(random_.randrange(1, 9)))]
    remainder = Reading(source, store=first.store, snapshots=[first.snapshot("chk")]).rows(5)
    expected = table.filter(condition).select(list(columns or SCHEMA.names)).to_pylist()
    assert repr([*(row for rows in polls for row in rows), *remainder]) == repr(expected)


def test_row_groups_are_skipped_by_statistics(tmp_path: Path) -> None:
    """The pages of the other row groups are destroyed: the filter never reads them."""
    table = pa.table({"id": range(40), "x": [float(number) for number in range(40)]})
    data = bytearray(parquet(table, 10))
    metadata = pq.read_metadata(io.BytesIO(bytes(data)))
    offset = metadata.row_group(2).column(0).dictionary_page_offset
    data[4:offset] = b"\0" * (offset - 4)
    drop(tmp_path, "a", bytes(data))
    for condition in ((ID > 21) & (ID < 28), (X > 21) & (X < 28)):
        assert [row["id"] for row in Reading(ParquetSource(str(tmp_path), filter=condition)).rows()] == list(
            range(22, 28)
        )
    with pytest.raises(DataRejected, match="it is not a readable Parquet file"):
        Reading(ParquetSource(str(tmp_path), filter=~(X < 22))).rows()  # true for NaN: statistics cannot decide


def test_statistics_of_another_type_than_the_wanted_one_decide_nothing(tmp_path: Path) -> None:
    """As text 9 > 10."""
    drop(tmp_path, "a", parquet(pa.table({"id": [8, 9, 10, 11]}), 2))
    source = ParquetSource(str(tmp_path), pa.schema([("id", pa.string())]), filter=ID > "2")
    assert [row["id"] for row in Reading(source).rows()] == ["8", "9"]


def test_values_of_other_columns_are_not_parsed(tmp_path: Path) -> None:
    drop(tmp_path, "a", '{"id": 1, "x": "no number", "text": "a"}\n')
    source = DirectorySource(str(tmp_path), JsonLinesFormat(SCHEMA), columns=("text",), filter=ID == 1)
    assert Reading(source).rows() == [{"text": "a"}]
    csv = DirectorySource(str(tmp_path / "csv"), CsvFormat(SCHEMA), columns=("ok", "id"), filter=TEXT == "a")
    drop(tmp_path / "csv", "a", "id,x,text,ok\n1,no number,a,true\n2,0,b,true\n")
    assert Reading(csv).rows() == [{"ok": True, "id": 1}]


def test_rows_that_the_filter_drops_may_have_no_event_time(tmp_path: Path) -> None:
    drop(tmp_path, "a", '{"id": null, "text": "b"}\n{"id": 7, "text": "a"}\n')
    source = DirectorySource(str(tmp_path), JsonLinesFormat(SCHEMA), event_time="id", filter=TEXT == "a")
    reading = Reading(source)
    assert [row["id"] for row in reading.rows()] == [7]
    assert MALFORMED_RECORDS not in reading.context.counters


@pytest.mark.parametrize(
    "format_", [ParquetFormat(), ParquetFormat(pa.schema([("id", pa.int64()), ("b", pa.int64())]))]
)
@pytest.mark.parametrize("options", [{"columns": ("b",)}, {"filter": pc.field("b") > 0}])
def test_a_column_that_one_file_lacks_is_named(format_: Any, options: Any, tmp_path: Path) -> None:
    drop(tmp_path, "a", parquet(pa.table({"id": [1], "b": [2]})))
    drop(tmp_path, "c", parquet(pa.table({"id": [1], "other": [2]})))
    reading = Reading(DirectorySource(str(tmp_path), format_, bounded=True, **options))
    assert reading.poll() is not None
    with pytest.raises(DataRejected, match=r"/c: .*'b'.*id, other"):
        reading.poll()
    skipping = DirectorySource(str(tmp_path), format_, bounded=True, on_malformed="skip", **options)
    assert len(Reading(skipping).rows()) == 1


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"columns": ("id", "nope")}, "unknown-column", "columns"),
        ({"columns": ("id", "id")}, "bad-columns", "columns"),
        ({"columns": ()}, "bad-columns", "columns"),
        ({"columns": "id"}, "bad-columns", "columns"),
        ({"filter": "id > 3"}, "bad-expression", "filter"),
        ({"filter": pc.field("nope") > 3}, "unknown-column", "filter"),
        ({"filter": ID + 1}, "bad-expression", "filter"),
        ({"columns": ("text",), "event_time": "id"}, "unknown-column", "event_time"),
        ({"split_bytes": 0}, "bad-size", "split_bytes"),
    ],
)
def test_bad_settings_are_refused_by_name(options: Any, code: str, field: str) -> None:
    with pytest.raises(JobRejected) as error:
        DirectorySource("/in", JsonLinesFormat(SCHEMA), **options).check()
    assert (error.value.code, error.value.field) == (code, field)


def test_the_columns_of_the_stream_are_known_before_it_reads() -> None:
    source = DirectorySource("/in", JsonLinesFormat(SCHEMA), columns=("text", "id"), filter=X > 0)
    assert source.output_columns() == pa.schema([("text", pa.string()), ("id", pa.int64())])
    assert DirectorySource("/in", LineFormat()).output_columns() == LineFormat().columns()
    assert ParquetSource("/in", columns=("a",)).output_columns() is None


def test_a_source_with_a_filter_survives_the_way_to_an_executor(tmp_path: Path) -> None:
    from pyspark import cloudpickle

    drop(tmp_path, "a", parquet(pa.table({"id": range(9)})))
    source = ParquetSource(str(tmp_path), filter=ID > 6)
    copy = cloudpickle.loads(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
    assert [row["id"] for row in Reading(copy).rows()] == [7, 8]
