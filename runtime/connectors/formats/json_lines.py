"""JSON lines: an object per line, parsed block by block (`json_rows`).

Arrow's parser ignores line breaks, so these conditions ensure that each line is exactly one object:

1. Every line begins with `{` and ends with `}`. An object that spans lines violates condition 1: inside an object, no
   object directly follows another. Each line therefore holds at least one object.
2. The number of objects equals the number of lines. With condition 1, each line holds exactly one object.

Condition 1 also keeps a line `null` from the parser, which crashes on `null`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import methodcaller
from typing import Final

import numpy as np
import pyarrow as pa

from runtime.connectors.blocks import skip_to_row
from runtime.connectors.formats.base import Chunk, Malformed, ScannedFormat, check_schema
from runtime.connectors.formats.bisect_malformed import text_chunks
from runtime.connectors.formats.input_file import InputFile, Scan
from runtime.connectors.formats.json_rows import read_by_arrow, row_parser
from runtime.errors import JobRejected

_NO_OBJECT: Final = "the line is not a JSON object"
_NOT_TEXT: Final = "the line is not UTF-8"
_TYPE_CHANGE: Final = re.compile(r"Column\(.*\) changed from (\w+) to (\w+)")
_CONVERSION_ERROR: Final = re.compile(r"Failed to convert JSON to (.+?), couldn't parse:\s?(.*)", re.DOTALL)
_NO_DATE: Final = re.compile(r"Failed to parse string: '(.*)' as a scalar of type (\S+)", re.DOTALL)
_MISSING_VALUE: Final = re.compile(r"a required field was (?:absent|null)")
_SYNTAX_ERROR: Final = re.compile(r"JSON parse error: (.*?)\.?(?: in row \d+)?", re.DOTALL)


@dataclass(frozen=True)
class JsonLinesFormat(ScannedFormat):
    """A JSON object per line, in UTF-8.

    Args:
        schema: the wanted fields with their types; further fields are ignored. A missing field is null; a field that
            is not nullable must have a value. Dates and timestamps are ISO 8601 text, timestamps with any offset, by
            default UTC.
    """

    schema: pa.Schema

    def check(self) -> None:
        check_schema(self.schema)
        for item in self.schema:
            try:
                read_by_arrow(b"{}", pa.schema([item.with_nullable(True)]))
            except pa.ArrowNotImplementedError:
                raise JobRejected("bad-format", "schema", f"{item.name!r}: no {item.type} from JSON") from None

    def columns(self) -> pa.Schema:
        return self.schema

    def scan(self, file: InputFile, scan: Scan) -> Iterator[Chunk]:
        narrow = JsonLinesFormat(scan.narrow(self.schema))
        with file.open() as content:
            skip_to_row(content, scan.start)
            without_object = methodcaller("unenclosed_rows", b"{", b"}")
            yield from text_chunks(
                content, scan, narrow.schema, narrow.parse, narrow.explain, without_object, _NO_OBJECT
            )

    def parse(self, data: bytes, count: int) -> pa.RecordBatch:
        """The rows of `data`. Raises ArrowInvalid unless `data` holds exactly `count` valid rows."""
        _check_text(data)
        return row_parser(self.schema).parse(data, count)

    def explain(self, row: int, text: str, error: str) -> Malformed:
        """The malformed row, with the column of the unreadable field. The column is "" if the line is not JSON."""
        if error.startswith((_NO_OBJECT, _NOT_TEXT)):
            return Malformed(row=row, column="", reason=error, text=text)
        column = ""
        try:
            if read_by_arrow(text.encode(), pa.schema([])).num_rows != 1:
                return Malformed(row=row, column="", reason="there is more than one object in the line", text=text)
            for column in self.schema.names:
                read_by_arrow(text.encode(), pa.schema([self.schema.field(column)]))
        except pa.ArrowInvalid as found:
            return Malformed(row=row, column=column, reason=_reword(str(found)), text=text)
        return Malformed(row=row, column="", reason=error, text=text)


def _check_text(data: bytes) -> None:
    """Raises ArrowInvalid unless `data` is UTF-8: the parsers accept any bytes."""
    ends = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    text = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(data)])
    try:
        text.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"{_NOT_TEXT}: {error}") from error


def _reword(error: str) -> str:
    """The parser's message, reworded for a single line."""
    if match := _TYPE_CHANGE.search(error):
        return f"a {match[2]}, {match[1]} expected"
    if match := _CONVERSION_ERROR.search(error):
        return f"invalid value {match[2]!r}, {match[1]} expected"
    if match := _NO_DATE.search(error):
        return f"invalid value {match[1]!r}, {match[2]} expected"
    if _MISSING_VALUE.search(error):
        return "a value is missing"
    return match[1] if (match := _SYNTAX_ERROR.fullmatch(error)) else error
