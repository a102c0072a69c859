"""The protocol of a message format, and formats without a schema registry: JSON, text, bytes.

A decoder turns the values of many messages into a batch at once. An encoder turns a batch into values. Decoders and
encoders may hold clients and caches; each subtask has its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.connectors.formats.base import Malformed, RowNumbers
from runtime.connectors.formats.json_lines import JsonLinesFormat
from runtime.errors import DataRejected, JobRejected
from runtime.operators.functions import row_values

Values = Sequence[bytes | None]  #: of messages; None: a tombstone
NO_VALUE: Final = "the record has no value (a tombstone)"


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded messages. `rows`: for each row of `batch` the number of its message; None: every message is a row.

    `row` of each malformed message is the number of the message among the decoded messages.
    """

    batch: pa.RecordBatch
    rows: RowNumbers | None = None
    malformed: tuple[Malformed, ...] = ()


Decode = Callable[[Values], Decoded]
Encode = Callable[[pa.RecordBatch], Sequence[bytes | None]]


class MessageFormat(Protocol):
    """Describes the values of messages. Must be picklable by cloudpickle."""

    def check(self) -> None:
        """Raises JobRejected if a setting is invalid. Does no I/O."""

    def columns(self) -> pa.Schema | None:
        """The columns of every decoded batch; None: a format that only encodes."""

    def decoder(self) -> Decode:
        """Decodes values. Malformed values are returned, not raised."""

    def encoder(self, topic: str) -> Encode:
        """Encodes rows for `topic`. Raises DataRejected for a row that the format cannot hold."""


@dataclass(frozen=True)
class KafkaJson:
    """A JSON object per message, in UTF-8.

    Args:
        schema: the fields to read, as for `JsonLinesFormat`. A sink does not need it: it writes every column.
    """

    schema: pa.Schema | None = None

    def check(self) -> None:
        if self.schema is not None:
            JsonLinesFormat(self.schema).check()

    def columns(self) -> pa.Schema | None:
        return self.schema

    def narrow(self, names: frozenset[str]) -> "KafkaJson":
        """The format with the fields of `names` only, or the first field if there is none."""
        fields = [] if self.schema is None else [item for item in self.schema if item.name in names]
        return self if self.schema is None else KafkaJson(pa.schema(fields or [self.schema.field(0)]))

    def decoder(self) -> Decode:
        if self.schema is None:
            raise JobRejected("bad-format", "format.schema", "a source needs the fields to read")
        lines = JsonLinesFormat(self.schema)
        return lambda values: decode_with(
            values,
            self.schema,
            lambda some: _parse_json(lines, some),
            lambda row, text, error: _explain_json(lines, row, text, error),
        )

    def encoder(self, topic: str) -> Encode:
        encode = msgspec.json.Encoder(enc_hook=str).encode
        return lambda batch: [encode(row) for row in rows_of(batch, topic)]


@dataclass(frozen=True)
class KafkaText:
    """A text per message, in UTF-8: a single column."""

    column: str = "value"

    def check(self) -> None:
        _check_column(self.column)

    def columns(self) -> pa.Schema:
        return pa.schema([pa.field(self.column, pa.string())])

    def decoder(self) -> Decode:
        def parse(values: Sequence[bytes]) -> pa.RecordBatch:
            texts = pa.array(values, pa.binary()).cast(pa.string())
            return pa.RecordBatch.from_arrays([texts], schema=self.columns())

        return lambda values: decode_with(values, self.columns(), parse)

    def encoder(self, topic: str) -> Encode:
        return lambda batch: _only_column(batch, self.column).cast(pa.string()).cast(pa.binary()).to_pylist()


@dataclass(frozen=True)
class KafkaBytes:
    """The bytes of each message: a single column. A message without a value is a null."""

    column: str = "value"

    def check(self) -> None:
        _check_column(self.column)

    def columns(self) -> pa.Schema:
        return pa.schema([pa.field(self.column, pa.binary())])

    def decoder(self) -> Decode:
        return lambda values: Decoded(
            pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=self.columns())
        )

    def encoder(self, topic: str) -> Encode:
        return lambda batch: _only_column(batch, self.column).cast(pa.binary()).to_pylist()


# ---------------------------------------------------------------- decoding


def decode_with(
    values: Values,
    schema: pa.Schema | None,
    parse: Callable[[Sequence[bytes]], pa.RecordBatch],
    explain: Callable[[int, str, str], Malformed] | None = None,
) -> Decoded:
    """Decodes `values` by `parse`, which raises ArrowInvalid if a value is malformed; bisects to the malformed values.

    Args:
        schema: the columns of the batch.
        explain: (message number, its text, message of the exception) -> the malformed row with column and reason.
    """
    present = [number for number, value in enumerate(values) if value is not None]
    bad = [Malformed(row=number, column="", reason=NO_VALUE, text="") for number, v in enumerate(values) if v is None]
    search = _Bisection([values[number] or b"" for number in present], parse, bad.append, explain, present)
    search.read(0, len(present))
    batches = search.batches or [pa.RecordBatch.from_pylist([], schema)]
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    if not bad:
        return Decoded(batch)
    rows = np.array(search.valid, dtype=np.int64)
    return Decoded(batch, rows, tuple(sorted(bad, key=lambda item: item.row or 0)))


class _Bisection:
    """Finds the malformed values by halving: a few bad values cost a logarithm of the batch each."""

    def __init__(
        self,
        values: Sequence[bytes],
        parse: Callable[[Sequence[bytes]], pa.RecordBatch],
        on_malformed: Callable[[Malformed], None],
        explain: Callable[[int, str, str], Malformed] | None,
        numbers: Sequence[int],
    ) -> None:
        self._values, self._parse, self._explain, self._numbers = values, parse, explain, numbers
        self._on_malformed = on_malformed
        self.batches: list[pa.RecordBatch] = []
        self.valid: list[int] = []  #: message numbers of the rows

    def read(self, start: int, stop: int) -> None:
        if start >= stop:
            return
        try:
            batch = self._parse(self._values[start:stop])
        except pa.ArrowInvalid as error:
            if stop - start == 1:
                self._on_malformed(self._describe(start, str(error)))
                return
            middle = (start + stop) // 2
            self.read(start, middle)
            self.read(middle, stop)
        else:
            self.batches.append(batch)
            self.valid += self._numbers[start:stop]

    def _describe(self, index: int, error: str) -> Malformed:
        number, text = self._numbers[index], self._values[index].decode(errors="backslashreplace")
        if self._explain is not None:
            return self._explain(number, text, error)
        return Malformed(row=number, column="", reason=error, text=text)


_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")
_SPACES: Final = {ord("\r"): " ", ord("\n"): " "}
_NO_OBJECT: Final = "the value is not a JSON object"


def _parse_json(lines: JsonLinesFormat, values: Sequence[bytes]) -> pa.RecordBatch:
    """The rows of `values`. Line breaks in JSON are white space between tokens, so a space can replace them."""
    objects = [value.translate(_LINE_BREAKS).strip() for value in values]
    if not all(value[:1] == b"{" and value[-1:] == b"}" for value in objects):
        raise pa.ArrowInvalid(_NO_OBJECT)
    return lines.parse(b"\n".join(objects), len(objects))


def _explain_json(lines: JsonLinesFormat, row: int, text: str, error: str) -> Malformed:
    if error == _NO_OBJECT:  # the parser crashes on `null`
        return Malformed(row=row, column="", reason=error, text=text)
    return lines.explain(row, text.translate(_SPACES).strip(), error)


# ---------------------------------------------------------------- columns


def _check_column(column: str) -> None:
    if not column:
        raise JobRejected("bad-format", "format.column", "must name the column")


def _only_column(batch: pa.RecordBatch, column: str) -> pa.Array:
    if column not in batch.schema.names:
        names = ", ".join(batch.schema.names)
        raise JobRejected("missing-column", "format.column", f"the rows have no column {column!r}; they have {names}")
    return batch.column(column)


def rows_of(batch: pa.RecordBatch, topic: str) -> list[dict[str, Any]]:
    """The rows as Python values, maps as dictionaries. Raises DataRejected for a map that has a key twice."""
    try:
        rows = list(row_values.rows_of(batch, maps_as_dicts=True))
    except KeyError as error:
        raise DataRejected(f"topic {topic!r}: a map has a key twice: {error}") from error
    return rows


def key_bytes(column: pa.Array) -> list[Any]:
    """Keys of messages: bytes as they are, other values as the UTF-8 of their text; None for null."""
    types = pa.types
    if any(test(column.type) for test in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)):
        keys: list[Any] = column.to_pylist()
        return keys
    return pc.cast(column, pa.string()).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
