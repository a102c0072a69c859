"""Arrow IPC files and streams: reading from every row, and damaged files."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.connectors.formats import ArrowFormat, MalformedFile
from tests.example_counts import examples

KINDS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def arrow_file(table: pa.Table, kind: str, batch_rows: int = 3, codec: str | None = None) -> bytes:
    data = io.BytesIO()
    with KINDS[kind](data, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, batch_rows)
    return data.getvalue()


def read(folder: Path, data: bytes, schema: pa.Schema | None = None, first_row: int = 0) -> list[dict[str, Any]]:
    (folder / "a.arrow").write_bytes(data)
    return [row for chunk in ArrowFormat(schema).read(folder / "a.arrow", first_row) for row in chunk.batch.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(total=st.integers(0, 30), batch=st.integers(1, 9), codec=st.sampled_from([None, "zstd", "lz4"]), data=st.data())
def test_rows_are_read_from_any_row_whatever_the_batches(
    kind: str, total: int, batch: int, codec: str | None, data: st.DataObject, tmp_path: Path
) -> None:
    """S1-22: a position within a file resumes at exactly that row."""
    rows = [{"n": n, "s": None if n % 5 == 0 else str(n)} for n in range(total)]
    table = pa.Table.from_pylist(rows, pa.schema([("n", pa.int64()), ("s", pa.string())]))
    first = data.draw(st.integers(0, total))
    assert read(tmp_path, arrow_file(table, kind, batch, codec), first_row=first) == rows[first:]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_cast_to_the_wanted_types_and_metadata_is_dropped(tmp_path: Path, kind: str) -> None:
    table = pa.table({"n": [1], "s": ["x"]}).replace_schema_metadata({"made": "elsewhere"})
    schema = pa.schema([pa.field("n", pa.int16(), nullable=False)])
    assert read(tmp_path, arrow_file(table, kind), schema) == [{"n": 1}]
    (chunk,) = ArrowFormat().read(tmp_path / "a.arrow", 0)
    assert chunk.batch.schema.metadata is None
    with pytest.raises(MalformedFile, match="no column 'm'; it has n, s"):
        read(tmp_path, arrow_file(table, kind), pa.schema([("m", pa.int64())]))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 900), at=st.integers(0, 2_000), byte=st.integers(0, 255))
def test_a_damaged_file_is_malformed_and_raises_no_other_error(
    kind: str, cut: int, at: int, byte: int, tmp_path: Path
) -> None:
    """Nor does it end the process: offsets of text are checked before they are used."""
    data = bytearray(arrow_file(pa.table({"n": range(20), "s": [str(n) for n in range(20)]}), kind))
    data[at % len(data)] = byte
    with contextlib.suppress(MalformedFile):
        read(tmp_path, bytes(data[: max(0, len(data) - cut)]))


def test_a_length_that_no_file_can_have_is_malformed(tmp_path: Path) -> None:
    """Arrow asks for the memory first: a length of petabytes is a fault of the file, not of the host."""
    data = arrow_file(pa.table({"n": range(20)}), "stream")
    outcomes = set()
    for at in range(0, len(data) - 7, 4):
        damaged = data[:at] + b"\x00\x00\x00\x00\x00\x00\x10\x00" + data[at + 8 :]
        with contextlib.suppress(MalformedFile):
            outcomes.add(len(read(tmp_path, damaged)))
    assert outcomes, "some bytes are padding"


def test_a_column_name_that_is_not_utf8_is_malformed(tmp_path: Path) -> None:
    data = arrow_file(pa.table({"column": [1]}), "stream").replace(b"column", b"c\xff\xfelum")
    with pytest.raises(MalformedFile, match="not a readable Arrow file"):
        read(tmp_path, data, pa.schema([("column", pa.int64())]))
