"""JSON lines against plain Python: from every row, in blocks of any size, with every kind of line that is no row."""

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.connectors.blocks import BLOCK_BYTES, read_blocks
from runtime.connectors.formats import Chunk, JsonLinesFormat, bisect_malformed
from runtime.connectors.sources.directory import MALFORMED_RECORDS, DirectorySource, OnMalformed
from runtime.errors import DataRejected, JobRejected
from tests.contracts.files import Reading, drop
from tests.contracts.test_sources import letters_in

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int32(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("x", pa.float64()),
        pa.field("at", pa.timestamp("ms")),
        pa.field("ok", pa.bool_()),
    ]
)
JSON = JsonLinesFormat(SCHEMA)


def read(data: bytes, folder: Path, start: int = 0, kind: JsonLinesFormat = JSON) -> list[Chunk]:
    path = folder / "a.jsonl"
    path.write_bytes(data)
    return list(kind.read(path, start))


def rows_of(chunks: list[Chunk]) -> list[dict[str, Any]]:
    assert all(len(chunk.rows) == chunk.batch.num_rows for chunk in chunks)
    return [row for chunk in chunks for row in chunk.batch.to_pylist()]


def verdicts(chunks: list[Chunk]) -> list[str]:
    return [str(bad_row) for chunk in chunks for bad_row in chunk.malformed]


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
OBJECTS = st.fixed_dictionaries(
    {"n": st.integers(-(2**31), 2**31 - 1)},
    optional={
        "name": st.none() | TEXT,
        "x": st.none() | st.floats(-1e6, 1e6),
        "ok": st.none() | st.booleans(),
        "other": st.none() | TEXT | st.lists(st.dictionaries(TEXT, st.integers()), max_size=2),
    },
)
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n", " \n", "\t\r\n"])


@settings(deadline=None)
@given(st.lists(st.tuples(OBJECTS, ENDS), max_size=15), st.booleans(), st.booleans(), st.integers(1, 400), st.data())
def test_rows_come_back_from_every_row_on(
    tmp_path_factory: Any, lines: list[Any], ascii_only: bool, last: bool, size: int, data: st.DataObject
) -> None:
    """Unknown fields are passed over, missing ones are null; the last line may lack its end."""
    text = "".join(json.dumps(record, ensure_ascii=ascii_only) + end for record, end in lines)
    expected = [{item.name: record.get(item.name) for item in SCHEMA} for record, _ in lines]
    start = data.draw(st.integers(0, len(expected)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bisect_malformed, "read_blocks", partial(read_blocks, block_bytes=size))
        chunks = read((text if last else text.rstrip()).encode(), tmp_path_factory.mktemp("in"), start)
    assert verdicts(chunks) == []
    assert rows_of(chunks) == expected[start:]


def test_types_are_those_of_the_schema(tmp_path: Path) -> None:
    kind = JsonLinesFormat(
        pa.schema(
            [
                ("day", pa.date32()),
                ("at", pa.timestamp("us")),
                ("zoned", pa.timestamp("ms", tz="UTC")),
                ("price", pa.decimal128(10, 2)),
                ("tags", pa.list_(pa.string())),
                ("place", pa.struct([("lat", pa.float32()), ("since", pa.date32())])),
                ("days", pa.list_(pa.date64())),
            ]
        )
    )
    line = {
        "day": "1970-01-02", "at": "1970-01-01T00:00:01.000002", "zoned": "1970-01-01T00:00:01Z", "price": 1.25,
        "tags": [None, "a"], "place": {"lat": 0.5, "since": "2024-02-29"},
        "days": ["0001-01-01", None],
    }  # fmt: skip
    (chunk,) = read(json.dumps(line).encode() + b"\n{}\n", tmp_path, kind=kind)
    assert chunk.batch.schema == kind.schema
    chunk.batch.validate(full=True)
    zoned = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    first, second = chunk.batch.to_pylist()
    assert (first["day"], first["zoned"], first["price"]) == (date(1970, 1, 2), zoned, Decimal("1.25"))
    assert (first["tags"], first["place"]) == ([None, "a"], {"lat": 0.5, "since": date(2024, 2, 29)})
    assert first["days"] == [date(1, 1, 1), None]
    assert first["at"].isoformat() == line["at"]
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"2024-02-30"', "invalid value '2024-02-30', date32[day] expected"),
        ('"2024-02-28T00:00:00"', "invalid value '2024-02-28T00:00:00', date32[day] expected"),
        ("19782", "a number, string expected"),
    ],
)
def test_a_date_is_text(value: str, reason: str, tmp_path: Path) -> None:
    """The sink of JSON lines writes dates as text, which its source refused."""
    (chunk,) = read(f'{{"day": {value}}}\n'.encode(), tmp_path, kind=JsonLinesFormat(pa.schema([("day", pa.date32())])))
    assert [(bad.column, bad.reason) for bad in chunk.malformed] == [("day", reason)]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_without_rows_has_none(data: bytes, tmp_path: Path) -> None:
    assert rows_of(read(data, tmp_path)) == []


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (chunk,) = read(b'\xef\xbb\xbf{"n": 1}\n', tmp_path)
    assert (chunk.batch["n"].to_pylist(), chunk.malformed) == ([1], ())


def test_a_line_may_be_larger_than_a_block(tmp_path: Path) -> None:
    huge = "x" * (3 * BLOCK_BYTES)
    data = "".join(json.dumps({"n": number, "name": huge if number == 1 else ""}) + "\n" for number in range(3))
    chunks = read(data.encode(), tmp_path)
    assert [len(row["name"]) for row in rows_of(chunks)] == [0, len(huge), 0]
    assert [row["n"] for row in rows_of(read(data.encode(), tmp_path, 2))] == [2]


# ---------------------------------------------------------------- malformed lines

NO_OBJECT = "the line is not a JSON object"
BAD: list[tuple[bytes, str, str]] = [
    (b'{"n": "a"}', "n", "a string, number expected"),
    (b'{"n": 1.5}', "n", "invalid value '1.5', int32 expected"),
    (b'{"n": 3000000000}', "n", "invalid value '3000000000', int32 expected"),
    (b'{"n": null}', "n", "a value is missing"),
    (b"{}", "n", "a value is missing"),
    (b'{"n": 1, "name": 5}', "name", "a number, string expected"),
    (b'{"n": 1, "ok": "true"}', "ok", "a string, boolean expected"),
    (b'{"n": 1, "at": "noon"}', "at", "invalid value 'noon', timestamp[ms] expected"),
    (b'{"n": 1, "x": [1]}', "x", "a array, number expected"),
    (b'{"n": 1, "n": 2}', "n", "Column(/n) was specified twice"),
    (b'{"n": 1', "", NO_OBJECT),
    (b"null", "", NO_OBJECT),
    (b"[1]", "", NO_OBJECT),
    (b"7", "", NO_OBJECT),
    (b"   ", "", NO_OBJECT),
    (b'{"n": 1},', "", NO_OBJECT),
    (b"\0", "", NO_OBJECT),
    (b'{"n": 1}{"n": 2}', "", "there is more than one object in the line"),
    (b'{"n": 1} null {"n": 2}', "", "there is more than one object in the line"),
    (b'{"n": 1}}', "", "The document is empty"),
    (b'{"n": 1,}', "", "Missing a name for object member"),
    (b"{'n': 1}", "", "Missing a name for object member"),
    (b'{"n": 1, "name": "\xff"}', "", "the line is not UTF-8"),
    (b'{"n": 1, "other": "\xff"}', "", "the line is not UTF-8"),
    (b'{"n": 1, "other": "\\ud800"}', "", "The surrogate pair in string is invalid"),
    (b'{"n": 1, "other": ' + b"[" * 100_000 + b"}", "", "Invalid value"),
]
GOOD = b'{"n": 7, "name": "\xc3\xa9"}\n'


@pytest.mark.parametrize(("line", "column", "reason"), BAD)
@pytest.mark.parametrize("before", [0, 1, 20])
def test_a_malformed_line_is_found_among_good_ones(
    line: bytes, column: str, reason: str, before: int, tmp_path: Path
) -> None:
    (chunk,) = read(GOOD * before + line + b"\n" + GOOD * 2, tmp_path)
    assert chunk.batch["n"].to_pylist() == [7] * (before + 2)
    assert chunk.rows.tolist() == [*range(before), before + 1, before + 2]
    (bad,) = chunk.malformed
    assert (bad.row, bad.column) == (before, column)
    assert bad.reason.startswith(reason)
    assert bad.text == line.decode(errors="backslashreplace")


def test_an_object_over_several_lines_is_not_made_up_for_by_two_in_one(tmp_path: Path) -> None:
    """As many objects as lines, and yet no object is the row that its line says."""
    (chunk,) = read(b'{"n": 1}{"n": 2}\n{"n":\n3}\n{"n": 4}\n', tmp_path)
    assert (chunk.batch["n"].to_pylist(), chunk.rows.tolist()) == ([4], [3])
    assert [bad_row.row for bad_row in chunk.malformed] == [0, 1, 2]


def test_many_bad_lines_in_a_large_file_are_all_found(tmp_path: Path) -> None:
    bad = {number for number in range(60_000) if number % 997 == 3}
    lines = (b'{"n": "?"}\n' if number in bad else b'{"n": %d}\n' % number for number in range(60_000))
    chunks = read(b"".join(lines), tmp_path, 1_000)
    assert [bad_row.row for chunk in chunks for bad_row in chunk.malformed] == sorted(n for n in bad if n >= 1_000)
    assert [row["n"] for row in rows_of(chunks)] == [n for n in range(1_000, 60_000) if n not in bad]


# ---------------------------------------------------------------- as a source


def source(folder: Path, policy: OnMalformed, letters: Path | None = None) -> DirectorySource:
    path = None if letters is None else str(letters)
    return DirectorySource(str(folder), JSON, event_time="at", on_malformed=policy, dead_letter_path=path)


LINES = (
    b'{"n": 1, "at": "1970-01-01 00:00:01"}\n\n'
    b'{"n": "two", "at": "1970-01-01 00:00:02"}\n'
    b'{"n": 3}\n'
    b'{"n": 4, "at": "1970-01-01 00:00:04"}'
)


def test_the_policies_hold_for_lines_as_for_other_rows(tmp_path: Path) -> None:
    folder, letters = tmp_path / "in", tmp_path / "letters"
    drop(folder, "a.jsonl", LINES)
    with pytest.raises(DataRejected) as error:
        Reading(source(folder, "fail")).rows()
    assert str(error.value) == f"{folder / 'a.jsonl'}: row 2, column 'n': a string, number expected"
    skipping = Reading(source(folder, "skip"))
    assert [row["n"] for row in skipping.rows()] == [1, 4]
    assert skipping.context.counters == {MALFORMED_RECORDS: 2}
    keeping = Reading(source(folder, "dead_letter", letters))
    assert [row["n"] for row in keeping.rows()] == [1, 4]
    keeping.snapshot("chk-1")
    rejections = [(letter["row"], letter["column"], letter["reason"]) for letter in letters_in(letters)]
    assert rejections == [(2, "n", "a string, number expected"), (3, "at", "the event time is missing")]


def test_a_restore_in_the_middle_of_a_file_goes_on_behind_the_malformed_lines(tmp_path: Path) -> None:
    """S1-22."""
    drop(tmp_path, "a.jsonl", LINES)
    first = Reading(source(tmp_path, "skip"))
    assert first.poll(1) is not None
    successor = Reading(source(tmp_path, "skip"), store=first.store, snapshots=[first.snapshot("chk-1")])
    assert [row["n"] for row in successor.rows()] == [4]
    assert MALFORMED_RECORDS not in successor.context.counters, "they were counted with the row before them"


@pytest.mark.parametrize(
    ("schema", "detail"),
    [
        (pa.schema([]), "there must be at least one column"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "there is more than one column 'a'"),
        (pa.schema([("a", pa.duration("s"))]), "'a': no duration[s] from JSON"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(schema: pa.Schema, detail: str) -> None:
    with pytest.raises(JobRejected, match=re.escape(detail)):
        DirectorySource("in", JsonLinesFormat(schema)).check()
