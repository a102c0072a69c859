"""Text files in blocks of whole rows: a parser never sees half a row, and every row has a number."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from runtime.errors import WeirError

BLOCK_BYTES: Final = 1 << 20
_SEARCH_BYTES: Final = 1 << 16
MAX_ROW_BYTES: Final = 256 << 20  #: a whole row is in memory, in several copies
_NEWLINE, _RETURN, _QUOTE = (ord(character) for character in '\n\r"')

Offsets = npt.NDArray[np.int64]


class RowTooLong(WeirError):
    """A text file has no line break within `MAX_ROW_BYTES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    """Whole rows. Row `i` is `content[starts[i] : stops[i]]`, line end included; blank lines may lie between rows."""

    content: bytes
    starts: Offsets
    stops: Offsets
    first_row: int

    def __len__(self) -> int:
        return len(self.starts)

    def data(self, start: int, stop: int) -> bytes:
        """The bytes of rows `start` to `stop` (exclusive)."""
        return self.content[self.starts[start] : self.stops[stop - 1]]

    def from_row(self, row: int) -> "TextBlock":
        """The rest of the block, from row `row` of the file on."""
        skipped = max(0, row - self.first_row)
        if not skipped:
            return self
        starts, stops = self.starts[skipped:], self.stops[skipped:]
        return TextBlock(content=self.content, starts=starts, stops=stops, first_row=self.first_row + skipped)

    def rows_with_open_quote(self) -> list[int]:
        """Offsets within the block of the rows with an odd number of quotes."""
        if b'"' not in self.content:
            return []
        quotes = np.flatnonzero(np.frombuffer(self.content, dtype=np.uint8) == _QUOTE)
        counts = np.searchsorted(quotes, self.stops) - np.searchsorted(quotes, self.starts)
        offsets: list[int] = np.flatnonzero(counts % 2 == 1).tolist()
        return offsets

    def unenclosed_rows(self, opening: bytes, closing: bytes) -> Iterator[int]:
        """Offsets within the block of rows not enclosed in `opening` and `closing`; surrounding spaces are ignored."""
        data: Any = np.frombuffer(self.content, dtype=np.uint8)
        last = self.stops - 1
        last = last - (data[last] == _NEWLINE)
        last = last - (data[last] == _RETURN)
        suspects = np.flatnonzero((data[self.starts] != ord(opening)) | (data[last] != ord(closing))).tolist()
        texts = ((row, self.data(row, row + 1).strip(b" \t\r\n")) for row in suspects)
        return (row for row, text in texts if not (text.startswith(opening) and text.endswith(closing)))


def read_blocks(
    file: BinaryIO, *, blank_rows: bool, stop: int | None = None, block_bytes: int = BLOCK_BYTES
) -> Iterator[TextBlock]:
    """Cuts the rest of `file` at line breaks. Without `blank_rows`, blank lines are no rows.

    Args:
        stop: rows that begin at this byte or later are left out (Hadoop's `LineRecordReader`). None: all rows.

    Raises:
        RowTooLong: there is no line break within `MAX_ROW_BYTES`.
    """
    tail, row, at = list[bytes](), 0, file.tell()  # `at`: place of `tail` in the file
    while stop is None or at < stop:
        read = file.read(block_bytes)
        cut = read.rfind(b"\n") + 1
        if read and not cut:
            tail.append(read)
            if len(tail) * block_bytes > MAX_ROW_BYTES:
                raise RowTooLong(f"row {row + 1} is longer than {MAX_ROW_BYTES >> 20} MB")
            continue
        content, tail = b"".join([*tail, read[:cut]]), [read[cut:]]
        at += len(content)
        if stop is not None and at > stop:
            content = content[: _end_of_row(content, stop - 1 - (at - len(content)))]
        if content:
            block = _text_block(content, row, blank_rows)
            row += len(block)
            yield block
        if not read:
            return


def skip_to_row(file: BinaryIO, start: int) -> None:
    """Moves to the first row that begins at byte `start` or later. A byte order mark belongs to no row."""
    first = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    if start <= first:
        file.seek(first)
        return
    at = file.seek(start - 1)
    while read := file.read(_SEARCH_BYTES):
        if cut := read.find(b"\n") + 1:
            file.seek(at + cut)
            return
        at += len(read)


def _end_of_row(content: bytes, place: int) -> int:
    """The end of the row that contains byte `place`, with its line end."""
    return content.find(b"\n", place) + 1 or len(content)


def _text_block(content: bytes, first_row: int, blank_rows: bool) -> TextBlock:
    data: Any = np.frombuffer(content, dtype=np.uint8)
    stops = np.flatnonzero(data == _NEWLINE) + 1
    if not len(stops) or stops[-1] != len(data):
        stops = np.append(stops, len(data))
    starts = np.concatenate([[0], stops[:-1]])
    if not blank_rows:
        blank = (data[starts] == _NEWLINE) | ((data[starts] == _RETURN) & (stops - starts <= 2))
        if data[-1] != _NEWLINE:
            blank[-1] = content[starts[-1] :] == b"\r"
        starts, stops = starts[~blank], stops[~blank]
    return TextBlock(content=content, starts=starts, stops=stops, first_row=first_row)
