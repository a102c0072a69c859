"""Lines of text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from runtime.connectors.blocks import skip_to_row
from runtime.connectors.formats.base import Chunk, Malformed, ScannedFormat
from runtime.connectors.formats.bisect_malformed import text_chunks
from runtime.connectors.formats.input_file import InputFile, Scan


@dataclass(frozen=True)
class LineFormat(ScannedFormat):
    """Lines of UTF-8 text in a column `line`, without line ends."""

    def check(self) -> None:
        """Never raises: there are no settings to check."""

    def columns(self) -> pa.Schema:
        return _LINES_SCHEMA

    def scan(self, file: InputFile, scan: Scan) -> Iterator[Chunk]:
        with file.open() as content:
            skip_to_row(content, scan.start)
            yield from text_chunks(content, scan, _LINES_SCHEMA, _parse_lines, _explain_line, blank_rows=True)


_LINES_SCHEMA: Final = pa.schema([pa.field("line", pa.string(), nullable=False)])


def _parse_lines(data: bytes, count: int) -> pa.RecordBatch:
    text = data.decode()
    text = text if text.endswith("\n") else text.removesuffix("\r") + "\n"  # the last line of a file
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    assert len(lines) == count, "a block knows its rows"
    return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=_LINES_SCHEMA)


def _explain_line(row: int, text: str, error: str) -> Malformed:
    return Malformed(row=row, column="line", reason=f"the line is not UTF-8: {error}", text=text)
