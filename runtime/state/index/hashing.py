"""The hash that assigns a key to its key group: column values -> 64 bits -> key group.

The hash is part of the checkpoint format: the key group of a stored row must be the same in every version, on every
machine, in every encoding of the same value. So it is defined here, in full, and pinned by golden values in the tests:

- integers of any width and sign: `mix(value as two's complement uint64)`, equal by value;
- bool: as the integers 0 and 1; date, time, timestamp, duration: as their integer, in the unit of the column;
- float16/32/64: the bits of the float64 value, with -0.0 as 0.0 and one NaN;
- string, binary and their large, view and fixed-size kinds: by bytes. Up to 64 bytes: `h = mix(length)`, then for each
  8-byte little-endian word (zero-padded) `h = mix(h ^ word)`. Longer: BLAKE2b, 8 bytes, little-endian;
- decimal128: as its 16 bytes; decimals of another scale are other keys;
- null: a constant;
- a dictionary-encoded column: as its values;
- several columns: `h = mix(h * ODD + next)` from left to right.

`mix` is the finaliser of MurmurHash3. The number of a key group is `hash % max_parallelism` (`core.job.key_groups`).

Compiled kernels (`runtime.kernels.hashes`) compute the hash.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.kernels.hash_constants import (
    COMBINE_MULTIPLIER,
    FLOAT_WORDS,
    HASHED_WORDS,
    INTEGER_WORDS,
    MIX_1,
    MIX_2,
    MIX_SHIFT_BITS,
    NULL_HASH,
    PIECE_BYTES,
)
from runtime.kernels.loading import native

Hashes = npt.NDArray[np.uint64]
Texts = tuple[
    npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]
]  #: bytes; start, length of each value

_UNMIX_1: Final = np.uint64(pow(int(MIX_1), -1, 1 << 64))
_UNMIX_2: Final = np.uint64(pow(int(MIX_2), -1, 1 << 64))
WORD_BYTES: Final = 8
MIN_DATA_BYTES: Final = 16
#: the type of the offsets of a text type, by its number
_OFFSET_TYPES: Final[Mapping[int, Any]] = {kind.id: np.int32 for kind in (pa.string(), pa.binary())} | {
    kind.id: np.int64 for kind in (pa.large_string(), pa.large_binary())
}


class HashInput(NamedTuple):
    """A column as the kernel of hashes reads it."""

    words: npt.NDArray[Any]  #: 8 bytes a row
    kind: int = HASHED_WORDS  #: `INTEGER_WORDS`, `FLOAT_WORDS` or `HASHED_WORDS`
    valid: npt.NDArray[np.bool_] | None = None  #: None: all rows are valid


def hash_rows(columns: Sequence[HashInput]) -> Hashes:
    """A hash per row of at least one column."""
    contiguous = [np.ascontiguousarray(column.words) for column in columns]
    # The kernel reads memory by address.
    assert {(len(words), words.itemsize) for words in contiguous} == {(len(contiguous[0]), WORD_BYTES)}, "bad words"
    masks = [None if column.valid is None else np.ascontiguousarray(column.valid) for column in columns]
    hashes = np.empty(len(contiguous[0]), dtype=np.uint64)
    native().hashes.hash_rows(
        np.array([words.ctypes.data for words in contiguous]),
        np.array([column.kind for column in columns]),
        np.array([0 if mask is None else mask.ctypes.data for mask in masks]),
        hashes,
    )
    return hashes


def hash_columns(columns: Sequence[pa.Array]) -> Hashes:
    """A hash per row.

    Raises:
        TypeError: a column's type cannot be a key; the message names the type.
    """
    if not columns:
        raise ValueError("a key has at least one column")
    return hash_rows([hash_input(column) for column in columns])


def hash_input(column: pa.Array, of_text: Callable[[pa.Array], Hashes] | None = None) -> HashInput:
    """A column as an input of `hash_rows`. `of_text`: hashes texts; None: as keys.

    Raises:
        TypeError: the column's type cannot be a key; the message names the type.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return HashInput(_hash_dictionary(column))
    if pa.types.is_null(kind):
        return HashInput(np.full(len(column), NULL_HASH))
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    if is_text(kind):
        return HashInput((of_text or hash_key_texts)(column), valid=valid)
    if pa.types.is_decimal128(kind):
        return HashInput(hash_key_texts(column.view(pa.binary(16))), valid=valid)
    if pa.types.is_floating(kind):
        floats = _without_nulls(column, pa.scalar(0, kind)).to_numpy().astype(np.float64, copy=False)
        return HashInput(floats, FLOAT_WORDS, valid)
    return HashInput(as_int64(column), INTEGER_WORDS, valid)


def key_groups(batch: pa.RecordBatch, keys: Sequence[str], max_parallelism: int) -> npt.NDArray[np.int64]:
    """The key group of every row of `batch`; agrees with `core.job.key_groups.key_group_of`."""
    return key_groups_of_hashes(hash_columns([batch.column(key) for key in keys]), max_parallelism)


def key_groups_of_hashes(hashes: Hashes, max_parallelism: int) -> npt.NDArray[np.int64]:
    """Hashes to key groups: `hash % max_parallelism`."""
    if max_parallelism & (max_parallelism - 1) == 0:  # the same result, ten times as fast as the division
        return (hashes & np.uint64(max_parallelism - 1)).view(np.int64)
    return (hashes % np.uint64(max_parallelism)).astype(np.int64)


def hash_column(column: pa.Array) -> Hashes:
    """A hash per row of a single column."""
    return hash_rows([hash_input(column)])


def is_text(kind: Any) -> bool:
    """Whether values of this type are sequences of bytes."""
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_binary(kind)
        or types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind)
    )  # fmt: skip


def as_int64(column: pa.Array) -> npt.NDArray[np.int64]:
    """The values of a fixed-width column as 64-bit codes, equal where the values are equal; nulls are arbitrary.

    Raises:
        TypeError: the type has no 64-bit code.
    """
    kind = column.type
    if pa.types.is_boolean(kind):
        return np.asarray(_without_nulls(column, False), dtype=np.int64)
    if pa.types.is_floating(kind):
        floats = _without_nulls(column, pa.scalar(0, kind)).to_numpy().astype(np.float64) + 0.0  # -0.0 becomes 0.0
        floats[np.isnan(floats)] = np.nan
        return np.asarray(floats.view(np.int64))
    if pa.types.is_temporal(kind):
        column, kind = _as_integers(column)
    if pa.types.is_integer(kind):
        integers = _without_nulls(column, 0).to_numpy()
        return np.asarray(
            integers.view(np.int64) if integers.dtype == np.uint64 else integers.astype(np.int64, copy=False)
        )
    raise TypeError(f"a column of type {column.type} cannot be a key")


def _as_integers(column: pa.Array) -> tuple[pa.Array, pa.DataType]:
    kind = pa.int32() if column.type.bit_width == 32 else pa.int64()
    return column.view(kind), kind


def _without_nulls(column: pa.Array, filler: Any) -> pa.Array:
    return column.fill_null(filler) if column.null_count else column


def mix(values: Hashes) -> Hashes:
    """MurmurHash3's finaliser: every input bit affects every output bit."""
    mixed = np.empty(len(values), dtype=np.uint64)
    native().hashes.mix(np.ascontiguousarray(values), mixed)
    return mixed


def salts_for(hashes: Hashes, key_groups: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """The integers that put keys into `key_groups`, as a last key column behind columns with `hashes`."""
    free = hashes >> np.uint64(1)  # so that no sum overflows
    targets = free - free % np.uint64(max_parallelism) + key_groups.astype(np.uint64)
    return _unmix(_unmix(targets) - hashes * COMBINE_MULTIPLIER).view(np.int64)


def _unmix(mixed: Hashes) -> Hashes:
    """The inverse of `mix`. A shift by more than half of the bits is its own inverse."""
    values: Hashes = mixed ^ (mixed >> MIX_SHIFT_BITS)
    values *= _UNMIX_2
    values ^= values >> MIX_SHIFT_BITS
    values *= _UNMIX_1
    values ^= values >> MIX_SHIFT_BITS
    return values


def _hash_dictionary(column: pa.DictionaryArray) -> Hashes:
    """A hash per row: hashes the distinct values, then looks up each row. A dictionary longer than that is decoded."""
    if len(column.dictionary) > len(column):
        return hash_column(column.dictionary_decode())
    hashes = np.append(hash_column(column.dictionary), NULL_HASH)
    return hashes[dictionary_rows(column)]


def dictionary_rows(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """The dictionary index of each row; null: the length of the dictionary."""
    indices = column.indices.cast(pa.int64())  # a small index type may not hold the length of the dictionary
    return np.asarray(_without_nulls(indices, len(column.dictionary)))


def hash_text(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    """A hash per byte sequence, in the form of `text_buffers`."""
    hashes = np.empty(len(starts), dtype=np.uint64)
    native().hashes.hash_texts(data, starts, lengths, hashes)
    for row in np.flatnonzero(lengths > PIECE_BYTES):
        value = data[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] = int.from_bytes(hashlib.blake2b(value, digest_size=WORD_BYTES).digest(), "little")
    return hashes


def hash_key_texts(column: pa.Array) -> Hashes:
    """A hash per value of a text column, as a key; of a null, it is arbitrary."""
    return hash_text(*text_buffers(column))


def hash_value_texts(column: pa.Array) -> Hashes:
    """A hash per value of a text column, for proofs: that of a key, but for values of more than 64 bytes.

    They are hashed in pieces of 64 bytes, whose hashes are added up with their positions: BLAKE2b would be called value
    by value.
    """
    hashes = np.empty(len(column), dtype=np.uint64)
    native().hashes.hash_texts(*text_buffers(column), hashes)
    return hashes


def value_input(column: pa.Array) -> HashInput:
    """A value column as an input of `hash_rows`, for proofs. Raises TypeError as `hash_input`."""
    return hash_input(column, hash_value_texts)


def hash_values(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """A hash per row of value columns, for proofs. It leaves out columns of nested types."""
    inputs = [HashInput(np.full(rows, NULL_HASH))]
    for column in columns:
        with suppress(TypeError, pa.ArrowException):  # a type that cannot be a key
            inputs.append(value_input(column))
    return hash_rows(inputs)


def padded(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy of the bytes with a word of zeroes behind them, which the kernels read."""
    return np.concatenate([data, np.zeros(WORD_BYTES, dtype=np.uint8)])


def text_buffers(column: pa.Array) -> Texts:
    """Data bytes of all values, without a copy; start and length of each value (null: length 0).

    There are `MIN_DATA_BYTES` at least, which the kernels need.
    """
    if column.type.id not in _OFFSET_TYPES:  # views and values of fixed size
        column = pc.cast(column, pa.large_binary())
    _, offsets_buffer, data_buffer = column.buffers()
    if not len(column) or not data_buffer:
        return np.zeros(MIN_DATA_BYTES, np.uint8), np.zeros(len(column), np.int64), np.zeros(len(column), np.int64)
    all_offsets = np.frombuffer(offsets_buffer, dtype=_OFFSET_TYPES[column.type.id])
    offsets: npt.NDArray[np.int64] = all_offsets[column.offset :][: len(column) + 1].astype(np.int64, copy=False)
    lengths = offsets[1:] - offsets[:-1]
    if column.null_count:
        lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(data_buffer, dtype=np.uint8)[first:last]
    if len(data) < MIN_DATA_BYTES:
        data = np.concatenate([data, np.zeros(MIN_DATA_BYTES, dtype=np.uint8)])
    return data, offsets[:-1] - first, lengths
