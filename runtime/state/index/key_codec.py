"""Key values as 64-bit codes and back: the key index compares codes.

Fixed-width values are their own codes; text, binary and decimals are interned. Codes live in memory only; snapshots
hold values.
"""

import re
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.column_types import Rule, is_key_type, key_rule, value_rule
from runtime.errors import JobRejected
from runtime.state.index.hashing import Hashes, as_int64, dictionary_rows, is_text, mix
from runtime.state.index.interned import InternedCodec

_DECIMAL_TYPE: Final = re.compile(r"decimal128\((\d+), (-?\d+)\)")
Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class KeyCodec(Protocol):
    """Codes of a key column. Equal values have equal codes. The caller handles nulls."""

    def encode(self, column: pa.Array, learn: bool) -> Codes:
        """Values to codes. Without `learn`, a value not seen before gets a code that no key has."""

    def decode(self, codes: Codes, nulls: Mask) -> pa.Array: ...

    def hashes(self, codes: Codes) -> Hashes:
        """The hash of the value of each code, as `hash_column` computes it."""

    def with_type(self, kind: Any) -> "KeyCodec":
        """A codec that decodes the same codes to a wider type. This codec stays unchanged: a capture may hold it."""


def plain_type(kind: Any) -> Any:
    """The type in which a key of type `kind` is stored and forwarded: without dictionaries and views."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def to_plain(column: pa.Array) -> pa.Array:
    """The values of `column` without dictionaries and views."""
    if pa.types.is_dictionary(column.type):
        return to_plain(column.dictionary_decode())
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)  # even a cast to the same type visits each value


def take_rows(column: pa.Array, rows: npt.NDArray[np.intp]) -> pa.Array:
    """The given rows of `column`. Views become plain: Arrow has no kernel that takes rows of view types."""
    is_view = pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type)
    return (to_plain(column) if is_view else column).take(pa.array(rows))


def common_key_type(first: Any, second: Any) -> Any:
    """The type of a key column that holds values of types `first` and `second`; None: there is no such type."""
    first, second = plain_type(first), plain_type(second)
    return _arrow_type(key_rule(str(first), str(second)), first, second)


def common_value_type(first: Any, second: Any) -> Any:
    """The type of a value column that holds values of types `first` and `second`; None: there is no such type."""
    return _arrow_type(value_rule(str(first), str(second)), first, second)


def check_key_type(name: str, kind: Any) -> None:
    """Refuses a key column whose values cannot be compared, hashed or stored.

    Raises:
        JobRejected: the type cannot be a key; the error names column and type.
    """
    kind = plain_type(kind)
    if not is_key_type(str(kind)):
        raise JobRejected("bad-key-type", name, f"a column of type {kind} cannot be a key")


def common_declared_type(kind: Any, declared: str, rule: Callable[[str, str], Rule]) -> Any:
    """The common type of `kind` and of the type named `declared` in the job graph; `kind` if there is none.

    Args:
        rule: `key_rule` or `value_rule`.
    """
    common = rule(str(kind), declared).common
    if common is None or common == str(kind):
        return kind
    decimal = _DECIMAL_TYPE.fullmatch(common)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else pa.type_for_alias(common)


def _arrow_type(rule: Rule, first: Any, second: Any) -> Any:
    if rule.common is None:
        return None
    return {str(first): first, str(second): second}.get(rule.common) or pa.type_for_alias(rule.common)


def key_codec(kind: Any) -> KeyCodec:
    """A codec for a plain type."""
    if is_text(kind) or pa.types.is_decimal(kind):
        return InternedCodec(kind)
    return FixedCodec(kind)


def encode_column(codec: KeyCodec, column: pa.Array, learn: bool) -> tuple[Codes, Mask | None]:
    """The codes of a column of any encoding (arbitrary where null), and the mask of its nulls; None: it has none.

    Encodes a dictionary instead of the rows if it is not longer. Its unused values are learnt too.
    """
    if pa.types.is_dictionary(column.type) and len(column.dictionary) <= len(column):
        codes, nulls = encode_column(codec, column.dictionary, learn)
        rows = dictionary_rows(column)
        absent = np.append(np.zeros(len(codes), dtype=bool) if nulls is None else nulls, True)[rows]
        return np.append(codes, 0)[rows], absent if absent.any() else None
    column = to_plain(column)
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return codec.encode(column, learn), nulls


class FixedCodec:
    """Numbers, booleans and times: each value is its own code."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def encode(self, column: pa.Array, learn: bool) -> Codes:
        return as_int64(column)

    def decode(self, codes: Codes, nulls: Mask) -> pa.Array:
        values = self._decode(codes)
        return pc.if_else(pa.array(~nulls), values, pa.scalar(None, self._kind)) if nulls.any() else values

    def hashes(self, codes: Codes) -> Hashes:
        return mix(codes.view(np.uint64))

    def with_type(self, kind: Any) -> "FixedCodec":
        return FixedCodec(kind)

    def _decode(self, codes: Codes) -> pa.Array:
        kind = self._kind
        if pa.types.is_boolean(kind):
            return pa.array(codes.astype(bool))
        if pa.types.is_floating(kind):
            return pa.array(codes.view(np.float64)).cast(kind)
        if pa.types.is_uint64(kind):
            return pa.array(codes.view(np.uint64))
        if pa.types.is_temporal(kind):
            return pa.array(codes.astype(f"int{kind.bit_width}")).view(kind)
        return pa.array(codes).cast(kind)  # a checked cast: raises if a value does not fit
