"""The values of each row format, read back by other libraries, also from files that were continued after restores."""

import csv
import datetime as dt
import io
import json
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weir
from runtime.connectors.sinks.row_files import RowFileSink
from runtime.errors import DataRejected, JobRejected
from tests.connectors.sinks.test_row_files import NO_LIMITS, commit, opened

SINKS: dict[str, type[RowFileSink]] = {"jsonl": weir.JsonLinesSink, "csv": weir.CsvSink, "avro": weir.AvroSink}
FLAT = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False), ("s", pa.string()), ("f", pa.float64()), ("b", pa.bool_()),
        ("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("q", pa.decimal128(9, 2)),
        ("u", pa.dictionary(pa.int32(), pa.string())),
    ]
)  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | TEXT,
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "d": st.none() | st.dates(),
        "t": st.none() | st.datetimes(timezones=st.just(dt.UTC)),
        "q": st.none() | st.decimals(-(10**6), 10**6, places=2),
        "u": st.none() | TEXT,
    }
)


def in_json(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts: dict[str, Callable[[Any], str]] = {
        "d": dt.date.isoformat,
        "t": lambda time: time.isoformat().replace("+00:00", "Z"),
        "q": str,
    }
    return [{name: texts[name](v) if name in texts and v is not None else v for name, v in row.items()} for row in rows]


def read_json(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def read_csv(data: bytes) -> list[dict[str, Any]]:
    """By Python's reader, which does not distinguish an empty text from a null."""
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def in_csv(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def text(name: str, value: Any) -> str:
        text = str(value).lower() if name == "b" else str(value)
        return "" if value is None else text

    return [{name: text(name, value) for name, value in row.items()} for row in rows]


def written(sink: RowFileSink, parts: list[list[dict[str, Any]]], schema: pa.Schema = FLAT) -> list[Path]:
    """Rows with a restore between two parts."""
    entries: list[Any] = []
    for token, part in enumerate(parts, 1):
        subtask = opened(sink, entries, token=token)
        subtask.write(pa.RecordBatch.from_pylist(part, schema))
        prepared, entries = subtask.snapshot(token)
        assert prepared == []
        subtask.write(pa.RecordBatch.from_pylist(part, schema))  # of no checkpoint
    last = opened(sink, entries, token=len(parts) + 1)
    last.finish()
    commit(sink, last.snapshot(99)[0], 99, len(parts) + 1)
    return sorted(Path(sink.path).rglob("part-*"))


PARTS = st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=12, deadline=None)
@given(PARTS)
def test_json_lines_are_the_values(tmp_path_factory: pytest.TempPathFactory, parts: list[list[dict[str, Any]]]) -> None:
    """S1-52."""
    (path,) = written(weir.JsonLinesSink(str(tmp_path_factory.mktemp("out")), **NO_LIMITS), parts)
    assert read_json(path.read_bytes()) == in_json([row for part in parts for row in part])


@settings(max_examples=12, deadline=None)
@given(PARTS)
def test_csv_has_the_values(tmp_path_factory: pytest.TempPathFactory, parts: list[list[dict[str, Any]]]) -> None:
    """S1-52: a single header. Arrow's reader tells an empty text from a null."""
    (path,) = written(weir.CsvSink(str(tmp_path_factory.mktemp("out")), **NO_LIMITS), parts)
    rows = [row for part in parts for row in part]
    types = {item.name: item.type for item in FLAT if item.name != "u"} | {"u": pa.string()}
    options = pa_csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    table = pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(newlines_in_values=True), convert_options=options)
    assert table.to_pylist() == rows
    plain = [{name: row[name] for name in ("n", "s", "b", "d", "u")} for row in rows]
    assert [{name: row[name] for name in plain[0]} for row in read_csv(path.read_bytes())] == in_csv(plain)


@settings(max_examples=12, deadline=None)
@given(PARTS, st.sampled_from(["deflate", "null"]))
def test_avro_has_the_values(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[dict[str, Any]]], codec: str
) -> None:
    """S1-52: blocks are appended behind a sync marker."""
    (path,) = written(weir.AvroSink(str(tmp_path_factory.mktemp("out")), codec=codec, **NO_LIMITS), parts)
    with path.open("rb") as file:
        assert list(fastavro.reader(file)) == [row for part in parts for row in part]


def test_nested_values_are_avro_of_any_reader(tmp_path: Path) -> None:
    schema = pa.schema(
        [("l", pa.list_(pa.struct([("x", pa.int8()), ("y", pa.list_(pa.struct([("x", pa.string())])))]))),
         ("m", pa.map_(pa.string(), pa.timestamp("ms"))), ("h", pa.time64("us")), ("z", pa.null()), ("b", pa.binary(2))]
    )  # fmt: skip
    rows = [
        {"l": [{"x": 1, "y": [{"x": "a"}]}, None],
         "m": {"k": dt.datetime.fromisoformat("2024-01-02")}, "h": dt.time(1, 2, 3, 4),
         "z": None, "b": b"\xff\0"},
        dict.fromkeys(schema.names),
    ]  # fmt: skip
    sink = weir.AvroSink(str(tmp_path))
    sink.check_columns(schema)
    (path,) = written(sink, [rows], schema)
    with path.open("rb") as file:
        assert list(fastavro.reader(file)) == rows


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_duckdb_reads_the_folder(tmp_path: Path, suffix: str) -> None:
    """Partition columns come from the folders."""
    sink = SINKS[suffix](str(tmp_path), partition_by=("s",))
    rows = [dict.fromkeys(FLAT.names) | {"n": number, "s": "xyz"[number % 3]} for number in range(30)]
    written(sink, [rows[:20], rows[20:]])
    read = {"jsonl": "read_json", "csv": "read_csv"}[suffix]
    pairs = duckdb.execute(
        f"select n, s from {read}('{tmp_path}/*/part-*', hive_partitioning=true) order by n"
    ).fetchall()
    assert pairs == [(row["n"], row["s"]) for row in rows]


@pytest.mark.parametrize("suffix", SINKS)
def test_a_file_of_other_columns_is_not_continued(tmp_path: Path, suffix: str) -> None:
    """JSON lines are: each line names its columns."""
    sink = SINKS[suffix](str(tmp_path), **NO_LIMITS)
    first = opened(sink)
    first.write(pa.RecordBatch.from_pydict({"a": [1]}))
    _, entries = first.snapshot(1)
    second = opened(sink, entries, token=2)
    second.write(pa.RecordBatch.from_pydict({"a": [2], "b": ["x"]}))
    second.finish()
    prepared, _ = second.snapshot(2)
    assert [each["rows"] for each in prepared] == ([2] if suffix == "jsonl" else [1, 1])


def test_a_file_of_another_format_is_rolled_with_its_own_suffix(tmp_path: Path) -> None:
    first = opened(weir.CsvSink(str(tmp_path), **NO_LIMITS))
    first.write(pa.RecordBatch.from_pydict({"a": [1]}))
    _, entries = first.snapshot(1)
    second = opened(weir.JsonLinesSink(str(tmp_path), **NO_LIMITS), entries, token=2)
    second.write(pa.RecordBatch.from_pydict({"a": [2]}))
    second.finish()
    commit(weir.JsonLinesSink(str(tmp_path)), second.snapshot(2)[0], 2, 2)
    assert sorted((path.suffix, path.read_text()) for path in tmp_path.glob("part-*")) == [
        (".csv", '"a"\n1\n'), (".jsonl", '{"a":2}\n'),
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", SINKS)
def test_no_file_exceeds_the_size(tmp_path: Path, suffix: str) -> None:
    """S1-44."""
    sink = SINKS[suffix](str(tmp_path), max_bytes=2_000, roll_after_ms=None, roll_after_idle_ms=None)
    subtask = opened(sink)
    for start in range(0, 600, 60):
        subtask.write(
            pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + 60)), "t": [f"text {start}"] * 60})
        )
    subtask.finish()
    commit(sink, subtask.snapshot(1)[0])
    paths = list(tmp_path.glob("part-*"))
    assert all(path.stat().st_size <= 2_000 for path in paths)
    assert len(paths) <= 2 * sum(path.stat().st_size for path in paths) / 2_000


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("sink", "columns", "problem"),
    [
        (weir.CsvSink("/out"), pa.schema([("l", pa.list_(pa.int8()))]), "'l' is list"),
        (weir.CsvSink("/out"), pa.schema([("b", pa.binary())]), "'b' is binary"),
        (weir.AvroSink("/out"), pa.schema([("a b", pa.int8())]), "column 'a b': Avro names are letters"),
        (weir.AvroSink("/out"), pa.schema([("s", pa.struct([("1", pa.int8())]))]), r"column 's\.1'"),
        (weir.AvroSink("/out"), pa.schema([("t", pa.timestamp("ns"))]), "cast it to microseconds"),
        (weir.AvroSink("/out"), pa.schema([("u", pa.uint64())]), "'u' is uint64"),
        (weir.JsonLinesSink("/out", partition_by=("d",)), pa.schema([("a", pa.int8())]), "no column 'd'"),
    ],
    ids=["list", "bytes", "name", "nested-name", "ns", "uint64", "partition"],
)
def test_columns_that_a_format_cannot_hold_are_refused_before_the_start(
    sink: RowFileSink, columns: pa.Schema, problem: str
) -> None:
    flow = weir.Dataflow("job")
    rows = flow.source("numbers", weir.SequenceSource(rows=3)).map("rows", dict, columns)
    with pytest.raises(JobRejected, match=problem) as error:
        rows.sink("out", sink)
    assert error.value.field == "out"


def test_columns_that_are_known_late_are_refused_with_the_first_rows(tmp_path: Path) -> None:
    with pytest.raises(DataRejected, match="'l' is list"):
        opened(weir.CsvSink(str(tmp_path))).write(pa.RecordBatch.from_pydict({"l": [[1]]}))


def test_two_columns_of_one_name_are_refused() -> None:
    for sink in SINKS.values():
        with pytest.raises(JobRejected, match="same name"):
            sink("/out").check_columns(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


@pytest.mark.parametrize("sink", [weir.CsvSink("/o", delimiter="ab"), weir.AvroSink("/o", codec="lzma")], ids=repr)
def test_bad_options_are_refused(sink: RowFileSink) -> None:
    with pytest.raises(JobRejected):
        sink.check()


def test_avro_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(JobRejected, match=r"weir-streams\[avro\]"):
        weir.AvroSink("/out").check()


def test_a_null_alone_in_a_csv_row_is_refused(tmp_path: Path) -> None:
    subtask = opened(weir.CsvSink(str(tmp_path)))
    subtask.write(pa.RecordBatch.from_pydict({"a": ["x", None]}))
    with pytest.raises(DataRejected, match="empty line"):
        subtask.snapshot(1)


def test_a_value_that_avro_cannot_hold_is_refused(tmp_path: Path) -> None:
    subtask = opened(weir.AvroSink(str(tmp_path)))
    subtask.write(pa.RecordBatch.from_pydict({"q": pa.array([Decimal("1.5")], pa.decimal128(9, 2)), "m": pa.array(
        [[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8()))}))  # fmt: skip
    with pytest.raises(DataRejected, match="Avro: column 'm': a value cannot be written"):
        subtask.snapshot(1)


def of_bytes(data: bytes) -> pa.Array:
    """Text with any bytes, as a Parquet file of another writer may hold it."""
    offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])


@pytest.mark.parametrize("suffix", SINKS)
@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**62]).cast(pa.timestamp("s")),
        pa.array([None, -(2**62)]).cast(pa.timestamp("us", "UTC")),
        pa.array([2**62]).cast(pa.timestamp("us")).dictionary_encode(),
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([1]).cast(pa.timestamp("us", "No/Where")),
        of_bytes(b"\xff\xfe"),
    ],
    ids=["s", "us", "dictionary", "date", "zone", "text"],
)
def test_a_value_that_no_text_stands_for_is_refused(tmp_path: Path, suffix: str, values: pa.Array) -> None:
    """Arrow writes such a time as `<value out of range: …>`; Python's types raise errors of any kind."""
    subtask = opened(SINKS[suffix](str(tmp_path), **NO_LIMITS))
    subtask.write(pa.RecordBatch.from_arrays([values, pa.array(range(len(values)))], ["a", "n"]))
    with pytest.raises(DataRejected, match=r"^(CSV|Avro|JSON lines): "):
        subtask.snapshot(1)


def test_json_times_of_nanoseconds_are_iso_8601_or_refused(tmp_path: Path) -> None:
    columns = {"t": pa.array([1]).cast(pa.timestamp("ns")), "d": pa.array([1]).cast(pa.duration("ns"))}
    subtask = opened(weir.JsonLinesSink(str(tmp_path), **NO_LIMITS))
    subtask.write(pa.RecordBatch.from_pydict(columns))
    subtask.finish()
    commit(weir.JsonLinesSink(str(tmp_path)), subtask.snapshot(1)[0])
    (path,) = tmp_path.glob("part-*")
    assert json.loads(path.read_bytes()) == {"t": "1970-01-01T00:00:00.000000001", "d": "P0DT0H0M0.000000001S"}
    with pytest.raises(JobRejected, match=r"'t' is .*cast it to microseconds"):
        weir.JsonLinesSink("/out").check_columns(pa.schema([("t", pa.list_(pa.time64("ns")))]))


@pytest.mark.parametrize("delimiter", "-:. 1eT")
def test_a_delimiter_within_numbers_or_times_is_refused(delimiter: str) -> None:
    """Arrow quotes text only, so such a file could not be read."""
    with pytest.raises(JobRejected, match="stands in numbers or times") as error:
        weir.CsvSink("/out", delimiter=delimiter).check()
    assert error.value.field == "delimiter"
