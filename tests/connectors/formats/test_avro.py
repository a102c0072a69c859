"""Avro files: types, reading from every row, and files that are damaged or are no rows."""

import contextlib
import io
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.formats import AvroFormat, MalformedFile
from runtime.connectors.sources.directory import MALFORMED_RECORDS, DirectorySource
from runtime.errors import DataRejected
from tests.contracts.files import Reading, drop
from tests.example_counts import examples

NUMBERS = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": ["null", "string"]}],
}


def avro_file(rows: list[dict[str, Any]], schema: Any = NUMBERS, **options: Any) -> bytes:
    data = io.BytesIO()
    fastavro.writer(data, schema, rows, **options)
    return data.getvalue()


def read(folder: Path, data: bytes, schema: pa.Schema | None = None, first_row: int = 0) -> pa.Table:
    (folder / "a.avro").write_bytes(data)
    chunks = list(AvroFormat(schema).read(folder / "a.avro", first_row))
    assert [number for chunk in chunks for number in chunk.rows] == list(
        range(first_row, chunks[-1].next_row if chunks else first_row)
    )
    return pa.Table.from_batches([chunk.batch for chunk in chunks], None if chunks else pa.schema([]))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1), "s": st.none() | st.text(max_size=5)}), min_size=1
    ),
    block=st.integers(1, 60),
    codec=st.sampled_from(["null", "deflate"]),
    data=st.data(),
)
def test_rows_are_read_from_any_row_whatever_the_blocks(
    rows: list[dict[str, Any]], block: int, codec: str, data: st.DataObject, tmp_path: Path
) -> None:
    """S1-22: a position within a file resumes at exactly that row."""
    first = data.draw(st.integers(0, len(rows) - 1))
    table = read(tmp_path, avro_file(rows, sync_interval=block, codec=codec), first_row=first)
    assert table.to_pylist() == rows[first:]


def test_logical_types_become_arrow_types(tmp_path: Path) -> None:
    types = {
        "day": ({"type": "int", "logicalType": "date"}, date(2024, 2, 29), pa.date32()),
        "at": (
            {"type": "long", "logicalType": "timestamp-micros"},
            datetime(2024, 1, 1, 12, 0, 0, 5, tzinfo=UTC),
            pa.timestamp("us", "UTC"),
        ),
        "clock": ({"type": "int", "logicalType": "time-millis"}, time(1, 2, 3, 4000), pa.time32("ms")),
        "price": (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("1.50"),
            pa.decimal128(9, 2),
        ),
        "kind": ({"type": "enum", "name": "kind", "symbols": ["A", "B"]}, "B", pa.string()),
        "again": ("kind", "A", pa.string()),
        "list": ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.int32())),
        "raw": ({"type": "fixed", "name": "raw", "size": 2}, b"ab", pa.binary(2)),
    }
    schema = {
        "type": "record",
        "name": "space.row",
        "fields": [{"name": name, "type": kind} for name, (kind, _, _) in types.items()],
    }
    table = read(tmp_path, avro_file([{name: value for name, (_, value, _) in types.items()}], schema))
    assert table.schema.types == [kind for _, _, kind in types.values()]
    assert table.to_pylist() == [{name: value for name, (_, value, _) in types.items()}]


def test_a_uuid_becomes_text(tmp_path: Path) -> None:
    number = UUID(int=7)
    kind = ["null", {"type": "string", "logicalType": "uuid"}]
    schema = {"type": "record", "name": "row", "fields": [{"name": "u", "type": kind}]}
    table = read(tmp_path, avro_file([{"u": number}, {"u": None}], schema))
    assert table["u"].to_pylist() == [str(number), None]


def test_columns_are_cast_to_the_wanted_types(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int16(), nullable=False)])
    assert read(tmp_path, avro_file([{"n": 1, "s": "x"}]), schema).to_pylist() == [{"n": 1}]
    with pytest.raises(MalformedFile, match="column 'n'"):
        read(tmp_path, avro_file([{"n": 2**40, "s": None}]), schema)
    with pytest.raises(MalformedFile, match="no column 'm'; it has n, s"):
        read(tmp_path, avro_file([{"n": 1, "s": None}]), pa.schema([("m", pa.int64())]))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("string", "not that of a record"),
        ({"type": "record", "name": "r", "fields": []}, "not that of a record with fields"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "x", "type": ["int", "string"]}]},
            "record.x: a union of several types has no column type",
        ),
    ],
)
def test_a_file_whose_records_are_no_rows_is_malformed(tmp_path: Path, schema: Any, reason: str) -> None:
    with pytest.raises(MalformedFile, match=reason):
        read(tmp_path, avro_file([], schema))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, 400),
    at=st.integers(0, 400),
    byte=st.integers(0, 255),
    codec=st.sampled_from(["null", "deflate"]),
)
def test_a_damaged_file_is_malformed_and_raises_no_other_error(
    cut: int, at: int, byte: int, codec: str, tmp_path: Path
) -> None:
    data = bytearray(avro_file([{"n": n, "s": str(n)} for n in range(30)], sync_interval=40, codec=codec))
    data[at % len(data)] = byte
    with contextlib.suppress(MalformedFile):
        read(tmp_path, bytes(data[: len(data) - cut]))


def test_a_malformed_file_follows_the_policy_of_the_source(tmp_path: Path) -> None:
    drop(tmp_path, "a.avro", b"no Avro at all")
    drop(tmp_path, "b.avro", avro_file([{"n": 1, "s": None}]))
    skipping = Reading(DirectorySource(str(tmp_path), AvroFormat(), on_malformed="skip"))
    assert skipping.rows() == [{"n": 1, "s": None}]
    assert skipping.context.counters[MALFORMED_RECORDS] == 1
    with pytest.raises(DataRejected, match=r"a\.avro: it is not a readable Avro file"):
        Reading(DirectorySource(str(tmp_path), AvroFormat())).rows()
