"""Values of Postgres as Arrow arrays: the Arrow type of a column, and its array from the text of its values.

| Postgres | Arrow |
|---|---|
| smallint, integer, bigint, oid | int16, int32, int64, int64 |
| real, double precision | float, double |
| numeric(p, s) | decimal128(p, s) |
| numeric without precision, or with more than 38 digits | string: no digit is lost |
| boolean | bool |
| text, varchar, char, name, citext, uuid, json, jsonb, enumerations | string |
| bytea | binary |
| date | date32 |
| timestamp, timestamptz | timestamp[us], timestamp[us, UTC] |
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import DataRejected, JobRejected

#: Text of values does not depend on the settings of server and role.
TEXT_SETTINGS: Final = (
    "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET extra_float_digits = 1; SET bytea_output = 'hex'"
)
_TYPES: Final = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "citext", "uuid", "json", "jsonb"), pa.string()),
}
_MAX_DIGITS: Final = 38
_MODIFIER_OFFSET: Final = 4  #: of `atttypmod` (VARHDRSZ)
_COLUMNS_QUERY: Final = """
SELECT a.attname, a.atttypid::int8, a.atttypmod, t.typname, t.typtype = 'e' FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND (%s OR a.attgenerated = '') ORDER BY a.attnum
"""


class Column(msgspec.Struct, frozen=True, array_like=True):
    """A column of a table that is read. `type`: oid; `modifier`: `pg_attribute.atttypmod`."""

    name: str
    type: int
    modifier: int
    type_name: str
    is_enum: bool

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type. Raises JobRejected if there is none."""
        if self.type_name == "numeric":
            packed = self.modifier - _MODIFIER_OFFSET
            precision, scale = packed >> 16, packed & 0x7FF
            fits = self.modifier >= 0 and precision <= _MAX_DIGITS and scale <= precision
            return pa.decimal128(precision, scale) if fits else pa.string()
        data_type = pa.string() if self.is_enum else _TYPES.get(self.type_name)
        if data_type is None:
            detail = f"column {self.name!r} is {self.type_name}, which has no Arrow type: name the others in `columns`"
            raise JobRejected("no-arrow-type", self.name, detail)
        return data_type


def find_columns(connection: psycopg.Connection[Any], table: int, *, generated: bool) -> list[Column]:
    """The columns of the table with this oid; `generated`: also those whose values the server computes."""
    return [Column(*row) for row in connection.execute(_COLUMNS_QUERY, [table, generated])]


def from_text(column: str, values: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """The array of values in the text form of `TEXT_SETTINGS`.

    Raises:
        DataRejected: Arrow's type has no such value, for example the date `infinity`; the column is named.
    """
    try:
        if pa.types.is_binary(kind):
            return pa.array([None if value is None else bytes.fromhex(value[2:]) for value in values], kind)
        text = pa.array(values, pa.string())
        if pa.types.is_boolean(kind):
            return pc.equal(text, "t")
        return text if pa.types.is_string(kind) else pc.cast(text, kind)
    except (pa.ArrowInvalid, ValueError) as error:
        advice = "correct the value, or leave out the column"
        raise DataRejected(f"Postgres: column {column!r}: a value is no {kind}: {error}: {advice}") from error
