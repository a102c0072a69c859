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


def read(folder: Path, table: pa.Table, *wanted: Any) -> list[dict[str, Any]]:
    pq.write_table(table, folder / "a.parquet")
    chunks = ParquetFormat(pa.schema(wanted)).read(folder / "a.parquet", 0)
    return [row for chunk in chunks for row in chunk.batch.to_pylist()]


def test_columns_are_brought_to_the_types_wanted(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, 2], pa.int64()), "a.b": ["x", None], "other": [0.5, 1.5]})
    wanted = [pa.field("a.b", pa.string()), pa.field("n", pa.int16(), nullable=False)]
    assert read(tmp_path, table, *wanted) == [{"a.b": "x", "n": 1}, {"a.b": None, "n": 2}]


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
