"""Parquet files that are not what the job's author wants: nulls, numbers out of range, columns twice."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.connectors.formats import MalformedFile, ParquetFormat
from runtime.connectors.sources.parquet import ParquetSource
from runtime.errors import JobRejected


def read(folder: Path, table: pa.Table, *fields: Any) -> list[dict[str, Any]]:
    pq.write_table(table, folder / "a.parquet")
    chunks = ParquetFormat(pa.schema(fields)).read(folder / "a.parquet", 0)
    return [row for chunk in chunks for row in chunk.batch.to_pylist()]


def test_columns_are_brought_to_the_types_wanted(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int64()), "a.b": ["x", None], "other": [0.5, 1.5]})
    fields = [pa.field("a.b", pa.string()), pa.field("n", pa.int16(), nullable=False)]
    assert read(tmp_path, table, *fields) == [{"a.b": "x", "n": 1}, {"a.b": None, "n": 2}]


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ([1, None], pa.field("n", pa.int64(), nullable=False), "a value is missing"),
        ([1, 3_000_000_000], pa.field("n", pa.int32()), "Integer value 3000000000 not in range"),
        ([0.5], pa.field("n", pa.int32()), "Float value 0.500000 was truncated"),
        (["x"], pa.field("n", pa.list_(pa.int8())), "Unsupported cast from string to list"),
    ],
)
def test_a_column_that_does_not_fit_is_named(tmp_path: Path, values: Any, kind: pa.Field, reason: str) -> None:
    with pytest.raises(MalformedFile, match=rf"^column 'n': {re.escape(reason)}"):
        read(tmp_path, pa.table({"m": values, "n": values}), kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_texts_of_few_values_have_the_type_of_the_file(tmp_path: Path, kind: Any, as_dictionary: bool) -> None:
    """Arrow reads them as dictionaries. Later row groups have other values, nulls, and more values than rows before."""
    words = ["a", None, "", "long " * 9] * 500 + [None] * 500 + [f"{number:09}" for number in range(1_500)]
    texts = pa.array(words, pa.string()).cast(kind)
    inner = pa.StructArray.from_arrays([pa.array(words)], names=["text"])
    table = pa.table({"text": texts, "inner.text": texts, "inner": inner, "n": range(len(words))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700, use_dictionary=as_dictionary)
    expected = pq.read_table(tmp_path / "a.parquet", partitioning=None)
    for schema in (None, table.schema):
        chunks = [chunk.batch for chunk in ParquetFormat(schema).read(tmp_path / "a.parquet", 0)]
        assert pa.Table.from_batches(chunks).equals(expected if schema is None else expected.cast(schema))


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(MalformedFile, match="more than one column 'n'; it has n, n"):
        read(tmp_path, table, ("n", pa.int64()))
    with pytest.raises(MalformedFile, match="no column 'm'; it has n, n"):
        read(tmp_path, table, ("m", pa.int64()))


@pytest.mark.parametrize(
    ("schema", "detail"),
    [
        (pa.schema([]), "at least one column"),
        (pa.schema([("n", pa.int8()), ("n", pa.int8())]), "more than one column 'n'"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(schema: pa.Schema, detail: str) -> None:
    with pytest.raises(JobRejected, match=f"schema: .*{detail}"):
        ParquetSource("in", schema).check()
