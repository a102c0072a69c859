"""JSON lines: one object per line, parsed by Arrow block by block.

Arrow's parser does not mind line breaks, so this module sees to it that a row is a line: every line must begin with `{`
and end with `}`, and there must be as many objects as lines. A break within an object would leave one of its lines
without the one or the other, since no object follows another inside an object; so each line holds at least one object,
and if the numbers agree, exactly one. (The first condition is also what keeps a line `null` from the parser, which
crashes on it.)
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.json as pa_json

from runtime.connectors.blocks import Block, skip_byte_order_mark
from runtime.connectors.formats.base import Chunk, Malformed, check_schema
from runtime.connectors.formats.bisect_malformed import text_chunks, whole
from runtime.errors import JobRejected

_NO_OBJECT: Final = "the line is not a JSON object"
_NOT_TEXT: Final = "the line is not UTF-8"
_KIND: Final = re.compile(r"Column\(.*\) changed from (\w+) to (\w+)")
_CONVERSION: Final = re.compile(r"Failed to convert JSON to (.+?), couldn't parse:\s?(.*)", re.DOTALL)
_MISSING: Final = re.compile(r"a required field was (?:absent|null)")
_SYNTAX: Final = re.compile(r"JSON parse error: (.*?)\.?(?: in row \d+)?", re.DOTALL)


@dataclass(frozen=True)
class JsonLinesFormat:
    """A JSON object per line, in UTF-8.

    Args:
        schema: the fields wanted, with their types; others are passed over. A field that is missing is null; one that
            is not nullable must have a value. Timestamps are text in ISO 8601, of any offset: without one, in UTC.
    """

    schema: pa.Schema

    def check(self) -> None:
        check_schema(self.schema)
        for item in self.schema:
            try:
                _read(b"{}", pa.schema([item.with_nullable(True)]))
            except pa.ArrowNotImplementedError:
                raise JobRejected("bad-format", "schema", f"{item.name!r}: no {item.type} from JSON") from None

    def columns(self) -> pa.Schema:
        return self.schema

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        with path.open("rb") as file:
            skip_byte_order_mark(file)
            yield from text_chunks(file, first_row, self.schema, self._parsed, self._blame, _no_objects, _NO_OBJECT)

    def _parsed(self, data: bytes, count: int) -> pa.RecordBatch:
        """All of `data`, which must be `count` good rows."""
        _check_text(data)
        table = _read(data, self.schema)
        if table.num_rows != count:
            raise pa.ArrowInvalid(f"{table.num_rows} objects in {count} lines")
        return pa.RecordBatch.from_arrays([whole(column) for column in table.columns], schema=self.schema)

    def _blame(self, row: int, text: str, error: str) -> Malformed:
        """Names the field that cannot be read, unless the line is no JSON."""
        if error.startswith((_NO_OBJECT, _NOT_TEXT)):
            return Malformed(row=row, column="", reason=error, text=text)
        column = ""
        try:
            if _read(text.encode(), pa.schema([])).num_rows != 1:
                return Malformed(row=row, column="", reason="there is more than one object in the line", text=text)
            for column in self.schema.names:
                _read(text.encode(), pa.schema([self.schema.field(column)]))
        except pa.ArrowInvalid as found:
            return Malformed(row=row, column=column, reason=_plain(str(found)), text=text)
        return Malformed(row=row, column="", reason=error, text=text)


def _no_objects(block: Block) -> Iterable[int]:
    return block.not_enclosed(b"{", b"}")


def _check_text(data: bytes) -> None:
    """The parser would take any bytes."""
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"{_NOT_TEXT}: {error}") from error


def _read(data: bytes, schema: pa.Schema) -> pa.Table:
    options = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parsing = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pa_json.read_json(pa.BufferReader(data), options, parsing)


def _plain(error: str) -> str:
    """What a message of the parser means for one line."""
    if found := _KIND.search(error):
        return f"a {found[2]}, {found[1]} expected"
    if found := _CONVERSION.search(error):
        return f"invalid value {found[2]!r}, {found[1]} expected"
    if _MISSING.search(error):
        return "a value is missing"
    return found[1] if (found := _SYNTAX.fullmatch(error)) else error
