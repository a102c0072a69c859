"""Text files that other programs make: stray carriage returns and quotes, byte order marks, headers of all kinds.

What a row says must not depend on where a block or a restore cuts the file.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.connectors import blocks as module_of_blocks
from runtime.connectors.blocks import read_blocks
from runtime.connectors.formats import (
    Chunk,
    CsvFormat,
    JsonLinesFormat,
    LineFormat,
    MalformedFile,
    bisect_malformed,
)
from runtime.errors import JobRejected
from tests.example_counts import examples

TEXTS = CsvFormat(pa.schema([("a", pa.string()), ("b", pa.string())]), has_header=False)
NUMBERS = CsvFormat(pa.schema([("n", pa.int64()), ("x", pa.float64())]), has_header=False)
ONE = CsvFormat(pa.schema([("a", pa.string())]), has_header=False)


def read(kind: Any, data: bytes, folder: Path, start: int = 0) -> list[Chunk]:
    path = folder / "a.txt"
    path.write_bytes(data)
    return list(kind.read(path, start))


def told(chunks: list[Chunk]) -> dict[int, Any]:
    """By row, what is said of it."""
    texts: dict[int, Any] = {}
    for chunk in chunks:
        texts.update(zip(chunk.rows.tolist(), map(str, chunk.batch.to_pylist()), strict=True))
        texts.update((bad.row, str(bad)) for bad in chunk.malformed if bad.row is not None)
    assert sorted(texts) == list(range(chunks[-1].next_row if chunks else 0))[-len(texts) :]
    return texts


MARK = b"\xef\xbb\xbf"
PIECES = st.sampled_from(
    [b'"', b'""', b",", b"\r", b"\n", b"\r\n", b"a", b"1", b" ", b"\xc3\xa9", b"\xff", MARK, b"\0"]
)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(PIECES, max_size=24), st.sampled_from([TEXTS, NUMBERS, ONE, LineFormat()]), st.data())
@example([b"1,2", b"\r", b"3,4", b"\n", b'a"b,"c', b"\n", b"5,6", b"\n"], TEXTS, None)
@example([b"1,2", b"\n", MARK, b"3,4", b"\n"], NUMBERS, None)
@example([b"a", b"\r", b"\r\n", b"b"], LineFormat(), None)
@example([b"1,2", b"\n\r", b"X"], TEXTS, None)
def test_what_a_row_says_does_not_depend_on_where_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], kind: Any, data: st.DataObject | None
) -> None:
    folder, content = tmp_path_factory.mktemp("in"), b"".join(pieces)
    texts = told(read(kind, content, folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bisect_malformed, "read_blocks", partial(read_blocks, block_bytes=1))
        assert told(read(kind, content, folder)) == texts
    start = data.draw(st.integers(0, len(texts))) if data else len(texts) // 2
    assert told(read(kind, content, folder, start)) == {row: text for row, text in texts.items() if row >= start}
    blank = () if isinstance(kind, LineFormat) else (b"", b"\r")
    rows = content.removeprefix(MARK).split(b"\n")
    assert len(texts) == len([row for row in (rows if rows[-1] else rows[:-1]) if row not in blank])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'x"y,"z\n', "row 1: a quote is not closed"),
        (b'x"y,"z', "row 1: a quote is not closed"),
        (b"1,2\r3,4\n", "row 1: there is a line break inside the row"),
    ],
)
def test_a_row_that_is_no_row_is_malformed(data: bytes, reason: str, tmp_path: Path) -> None:
    assert told(read(TEXTS, data, tmp_path)) == {0: reason}
    good = str({"a": "1", "b": "2"})
    assert told(read(TEXTS, b"1,2\n" + data.rstrip() + b"\n1,2\n", tmp_path)) == {
        0: good, 1: reason.replace("row 1", "row 2"), 2: good,
    }  # fmt: skip


def test_a_carriage_return_inside_quotes_belongs_to_the_value(tmp_path: Path) -> None:
    (chunk,) = read(TEXTS, b'1,"2\r3"\n4,5\n', tmp_path)
    assert chunk.batch.to_pylist() == [{"a": "1", "b": "2\r3"}, {"a": "4", "b": "5"}]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"a,b\r1,2\r3,4", "the header cannot be read: there is a line break inside it"),
        (b"x" * 200_000 + b",a,b\n", "the header cannot be read: field larger than field limit"),
    ],
)
def test_a_header_that_cannot_be_read_is_the_files_fault(header: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match=reason):
        read(CsvFormat(TEXTS.schema), header, tmp_path)


def test_a_byte_order_mark_belongs_to_no_row(tmp_path: Path) -> None:
    assert [chunk.batch.to_pylist() for chunk in read(LineFormat(), MARK + b"the\n", tmp_path)] == [[{"line": "the"}]]
    assert read(LineFormat(), MARK, tmp_path) == []
    (chunk,) = read(CsvFormat(TEXTS.schema), MARK + b"\na,b\n1,2\n", tmp_path)
    assert chunk.batch.to_pylist() == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("kind", "line"),
    [(NUMBERS, b"noon,1\n"), (NUMBERS, b'"1,2\n'), (LineFormat(), b"\xff\n")],
    ids=["csv", "quote", "text"],
)
@pytest.mark.parametrize("good", [0, 1, 700, 999])
def test_rows_that_are_all_malformed_come_in_small_chunks(kind: Any, line: bytes, good: int, tmp_path: Path) -> None:
    """Each of them is parsed alone: a whole block of them would hold up the loop of the reader, and its checkpoints."""
    chunks = read(kind, line * good + b"1,2\n" + line * (1_000 - good), tmp_path)
    assert max(len(chunk.malformed) for chunk in chunks) == bisect_malformed.MAX_MALFORMED_ROWS
    assert [row for chunk in chunks for row in chunk.rows.tolist()] == [good]
    assert [bad.row for chunk in chunks for bad in chunk.malformed] == [row for row in range(1_001) if row != good]
    assert sorted(chunk.next_row for chunk in chunks) == [chunk.next_row for chunk in chunks]
    texts = told(list(kind.read(tmp_path / "a.txt", 500)))
    assert texts == {row: text for row, text in told(chunks).items() if row >= 500}


@pytest.mark.parametrize(
    ("schema", "delimiter", "message"),
    [
        (pa.schema([("a", pa.list_(pa.int8()))]), ",", "schema: 'a': no list<item: int8> from CSV"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), ",", "schema: there is more than one column 'a'"),
        (TEXTS.schema, "é", "delimiter: must be a single ASCII character, not 'é'"),
        (TEXTS.schema, "\0", "delimiter: must be a single ASCII character"),
    ],
)
def test_a_format_that_cannot_be_is_refused(schema: pa.Schema, delimiter: str, message: str) -> None:
    with pytest.raises(JobRejected, match=f"^{message}".replace("<", ".").replace(">", ".")):
        CsvFormat(schema, delimiter=delimiter).check()


@pytest.mark.parametrize("kind", [TEXTS, JsonLinesFormat(TEXTS.schema), LineFormat()], ids=["csv", "json", "lines"])
def test_a_file_without_line_breaks_is_not_held_in_memory_whole(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else than text, most likely: it would take the slot with it, and no one would know why."""
    monkeypatch.setattr(module_of_blocks, "MAX_ROW_BYTES", 3 << 20)
    good = b'{"a": "1"}\n' if isinstance(kind, JsonLinesFormat) else b"1,2\n"
    path = tmp_path / "a.txt"
    path.write_bytes(good * 2 + b"x" * (2 << 20) + b"\n" + b"x" * (9 << 20))
    chunks = kind.read(path, 0)
    assert next(chunks).next_row == 2
    assert next(chunks).next_row == 3
    with pytest.raises(MalformedFile, match=r"^row 4 is longer than 3 MB$"):
        next(chunks)


def test_a_header_is_not_read_for_ever(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match=r"^the header is longer than 1 MB$"):
        read(CsvFormat(TEXTS.schema), b"\n\n" + b"a" * (2 << 20) + b",b\n1,2\n", tmp_path)
