"""Formats against plain Python, in blocks of every size and from every row."""

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.connectors.blocks import read_blocks
from runtime.connectors.formats import CsvFormat, LineFormat, MalformedFile

TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=8)


def lines_of(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1] if not lines[-1] else lines


@given(
    st.lists(st.sampled_from([b"", b"\r", b"a", b"ab,c", b"\xff", b'"']), max_size=30),
    st.booleans(),
    st.integers(1, 12),
)
def test_blocks_hold_whole_rows_and_number_them(rows: list[bytes], ends: bool, size: int) -> None:
    data = b"\n".join(rows) + (b"\n" if ends and rows else b"")
    for blank_rows in (True, False):
        texts = list[bytes]()
        for block in read_blocks(io.BytesIO(data), blank_rows=blank_rows, block_bytes=size):
            assert block.first_row == len(texts)
            texts += [block.data(i, i + 1).removesuffix(b"\n") for i in range(len(block))]
        assert texts == [line for line in lines_of(data) if blank_rows or line not in (b"", b"\r")]


@given(st.lists(TEXT, max_size=20), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.data())
def test_lines_come_back_without_their_ends(lines: list[str], end: str, last: bool, data: st.DataObject) -> None:
    text = end.join(lines) + (end if last else "")
    expected = [line.decode() for line in lines_of(text.replace("\r\n", "\n").encode())]
    start = data.draw(st.integers(0, len(expected)))
    assert read(LineFormat(), text.encode(), start) == [{"line": line} for line in expected[start:]]


def test_a_line_that_is_not_utf8_is_found_among_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\ntw\xffo\n\nthree\n")
    (chunk,) = LineFormat().read(path, 0)
    assert chunk.batch["line"].to_pylist() == ["one", "", "three"]
    assert chunk.rows.tolist() == [0, 2, 3]
    (bad,) = chunk.malformed
    assert (bad.row, bad.column, bad.text) == (1, "line", "tw\\xffo")


def read(kind: Any, data: bytes, start: int = 0) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        chunks = list(kind.read(Path(file.name), start))
    assert all(not chunk.malformed for chunk in chunks)
    assert all(len(chunk.rows) == chunk.batch.num_rows for chunk in chunks)
    return [row for chunk in chunks for row in chunk.batch.to_pylist()]


SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int32()), ("x", pa.float64())])
ROWS = st.lists(st.tuples(TEXT, st.none() | st.integers(-1000, 1000), st.none() | st.floats(-1e6, 1e6)), max_size=15)


@given(ROWS, st.sampled_from([",", ";", "\t"]), st.booleans(), st.data())
def test_csv_rows_come_back_from_every_row_on(
    rows: list[Any], delimiter: str, header: bool, data: st.DataObject
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    if header:
        writer.writerow(["name", "n", "x"])
    writer.writerows([name, "" if n is None else n, "" if x is None else x] for name, n, x in rows)
    start = data.draw(st.integers(0, len(rows)))
    kind = CsvFormat(SCHEMA, has_header=header, delimiter=delimiter)
    assert read(kind, text.getvalue().encode(), start) == [
        {"name": name, "n": n, "x": x} for name, n, x in rows[start:]
    ]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"n,name,x\n", b"\xef\xbb\xbfn,name,x\n\n"])
def test_a_file_without_rows_has_none(data: bytes) -> None:
    assert read(CsvFormat(SCHEMA), data) == []


def test_the_header_may_have_a_byte_order_mark_and_other_columns() -> None:
    data = b"\xef\xbb\xbfextra,x,n,name\r\n?,0.5,1,a\r\n\r\n?,,,b"
    expected = [{"name": "a", "n": 1, "x": 0.5}, {"name": "b", "n": None, "x": None}]
    assert read(CsvFormat(SCHEMA), data) == expected


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"name,n\n", "the header has no column 'x'; it has name, n"),
        (b"name,n,x,x\n", "the header has more than one column 'x'"),
        (b"name,n,\xff\n", "the header is not UTF-8"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(header: bytes, message: str) -> None:
    with pytest.raises(MalformedFile, match=message):
        read(CsvFormat(SCHEMA), header + b"a,1,2\n")


def test_a_required_value_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"n,name\n1,a\n,b\n3,c\n")
    kind = CsvFormat(pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("name", pa.string())]))
    (chunk,) = kind.read(path, 0)
    assert chunk.batch["name"].to_pylist() == ["a", "c"]
    (bad,) = chunk.malformed
    assert str(bad) == "row 2, column 'n': a value is missing"


def test_nan_is_a_number_and_no_null(tmp_path: Path) -> None:
    """The sink of CSV writes NaN as `nan`, which its source took for null."""
    path = tmp_path / "a"
    path.write_bytes(b"x,n\nnan,1\nNaN,NA\n1.#QNAN,NULL\ninf,nan\n")
    (chunk,) = CsvFormat(pa.schema([("x", pa.float64()), ("n", pa.int32())])).read(path, 0)
    assert str(chunk.batch["x"].to_pylist()) == "[nan, nan, None]"
    assert chunk.batch["n"].to_pylist() == [1, None, None]
    assert [(bad.row, bad.column) for bad in chunk.malformed] == [(3, "n")]


def test_many_bad_rows_in_a_large_file_are_all_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    bad = {number for number in range(60_000) if number % 997 == 3}
    path.write_text("".join("a,b\n" if number in bad else f"{number},x\n" for number in range(60_000)))
    kind = CsvFormat(pa.schema([("n", pa.int64()), ("s", pa.string())]), has_header=False)
    chunks = list(kind.read(path, 1000))
    assert [m.row for chunk in chunks for m in chunk.malformed] == sorted(number for number in bad if number >= 1000)
    assert [n for chunk in chunks for n in chunk.batch["n"].to_pylist()] == [
        n for n in range(1000, 60_000) if n not in bad
    ]
