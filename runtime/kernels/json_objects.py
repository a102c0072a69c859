"""Compiled parser of JSON objects with known columns: text to numpy columns, without the GIL.

The kernel accepts a subset of JSON and stops at the first row outside of it: an unusual spelling of a value, a key with
an escape, a duplicate key, a missing value of a required column, or a malformed row. The caller parses such a row by
Arrow. In the subset the kernel yields the values that Arrow yields.

1. The keys of consecutive rows mostly have the same order. For each position in an object, the kernel stores the place
   of the previous row's key and the column of that key. A key with equal bytes needs no search.
2. Texts are located first and copied when the size of each column is known.

Every loop over bytes ends at a line feed, and bytes are read in words, so the text must end with `PADDING`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.hashes import Bytes, Flags, Integers, Words
from runtime.kernels.jit import (
    BYTES,
    BYTES_OUT,
    FLAG_ROWS_OUT,
    FLAGS,
    INT32_ROWS_OUT,
    INT32S,
    INT32S_OUT,
    INTEGER,
    INTEGER_ROWS_OUT,
    INTEGERS,
    TWO_INTEGERS,
    WORDS,
    compiled,
    load_word_at,
    outlined,
    store_word_at,
)
from runtime.kernels.json_numbers import float_bits, number
from runtime.kernels.json_texts import (
    FAILED,
    after_spaces,
    are_equal,
    byte_at,
    copy_escaped,
    end_of_string,
    is_word,
    signed,
)
from runtime.kernels.json_times import timestamp

Int32s = npt.NDArray[np.int32]

SKIPPED_COLUMN: Final = 0  #: checked, but not parsed
INTEGER_COLUMN: Final = 1
FLOAT_COLUMN: Final = 2
BOOLEAN_COLUMN: Final = 3
TEXT_COLUMN: Final = 4
TIMESTAMP_COLUMN: Final = 5

PADDING: Final = b"\n" * 16
MAX_KEYS: Final = 4_096  #: positions in an object with a stored key
_MAX_DEPTH: Final = 64  #: of skipped values

_TRUE, _FALS, _NULL = (np.uint64(int.from_bytes(text, "little")) for text in (b"true", b"fals", b"null"))


@outlined
def _after_scalar(place: int) -> int:
    """The end of a text, number, boolean or null that is not parsed; -1: outside the subset."""
    byte = byte_at(place)
    if byte == 34:
        end, _ = end_of_string(place + 1)
        return end if end == FAILED else end + 1
    if byte == 116:
        return place + 4 if is_word(place, _TRUE) else FAILED
    if byte == 102:
        return place + 5 if (is_word(place, _FALS) and byte_at(place + 4) == 101) else FAILED
    if byte == 110:
        return place + 4 if is_word(place, _NULL) else FAILED
    end, _, _, power, _ = number(place)
    return end if power < 280 else FAILED


@outlined
def _after_value(place: int) -> int:
    """The end of any value, nested or not, that is checked and not parsed; -1: outside the subset."""
    depth, objects = 0, np.uint64(0)  # the lowest bit of `objects`: whether the innermost value is an object
    while True:
        byte = byte_at(place)
        if byte in (123, 91):
            if depth == _MAX_DEPTH:
                return FAILED
            depth += 1
            objects = (objects << np.uint64(1)) | np.uint64(byte == 123)
            place = after_spaces(place + 1)
            if byte_at(place) != byte + 2:  # not empty
                if byte == 123:
                    place = _after_key(place)
                    if place == FAILED:
                        return FAILED
                continue
        else:
            place = _after_scalar(place)
            if depth == 0 or place == FAILED:
                return place
            place = after_spaces(place)
        while byte_at(place) == (125 if objects & np.uint64(1) else 93):
            place += 1
            depth -= 1
            objects >>= np.uint64(1)
            if depth == 0:
                return place
            place = after_spaces(place)
        if byte_at(place) != 44:
            return FAILED
        place = after_spaces(place + 1)
        if objects & np.uint64(1):
            place = _after_key(place)
            if place == FAILED:
                return FAILED


@outlined
def _after_key(place: int) -> int:
    """The place of the value behind a key and its colon; -1: outside the subset."""
    if byte_at(place) != 34:
        return FAILED
    end, _ = end_of_string(place + 1)
    if end == FAILED:
        return FAILED
    place = after_spaces(end + 1)
    if byte_at(place) != 58:
        return FAILED
    return after_spaces(place + 1)


@outlined
def _column_of(place: int, length: int, names: int, name_ends: Integers) -> int:
    """The column of a key, or -1 for a key that no column has."""
    start = 0
    for column in range(len(name_ends)):
        if name_ends[column] - start == length and are_equal(place, names + start, length):
            return column
        start = name_ends[column]
    return -1


@outlined
def _parse_text(place: int) -> tuple[int, int, int]:
    """(end, place, length) of a text; the length is negative if it has escapes. End -1: outside the subset."""
    if byte_at(place) != 34:
        return FAILED, 0, 0
    end, escaped = end_of_string(place + 1)
    if end == FAILED:
        return FAILED, 0, 0
    return end + 1, place + 1, place + 1 - end if escaped else end - place - 1


@outlined
def _parse_timestamp(place: int, fraction_digits: int) -> tuple[int, int]:
    """(end, value) of a timestamp; end -1: outside the subset."""
    end, start, length = _parse_text(place)
    if end == FAILED or length < 0:
        return FAILED, 0
    accepted, value = timestamp(start, end - 1, fraction_digits)
    return end if accepted else FAILED, value


@outlined
def _parse_float(place: int) -> tuple[int, int]:
    """(end, bits) of a number as a double; end -1: outside the subset."""
    end, negative, digits, power, _ = number(place)
    if end == FAILED:
        return FAILED, 0
    bits = float_bits(digits, power)
    return FAILED if bits == FAILED else end, bits | (signed(negative) << 63)


@outlined
def _parse_integer(place: int, low: np.uint64, high: np.uint64) -> tuple[int, int]:
    """(end, value) of an integer from -`low` to `high`; end -1: outside the subset."""
    end, negative, digits, _, integer = number(place)
    if end == FAILED or not integer:
        return FAILED, 0
    if negative:
        return FAILED if digits > low or digits == np.uint64(0) else end, -signed(digits)
    return FAILED if digits > high else end, signed(digits)


@outlined
def _parse_boolean(place: int) -> tuple[int, int]:
    """(end, 0 or 1) of a boolean; end -1: outside the subset."""
    if is_word(place, _TRUE):
        return place + 4, 1
    return place + 5 if is_word(place, _FALS) and byte_at(place + 4) == 101 else FAILED, 0


@outlined
def _parse_value(place: int, as_type: int, low: np.uint64, high: np.uint64) -> tuple[int, int, int]:
    """(end, value, length of a text) of a value that is not null; end -1: outside the subset."""
    if as_type == TEXT_COLUMN:
        return _parse_text(place)
    end, value = FAILED, 0
    if as_type == INTEGER_COLUMN:
        end, value = _parse_integer(place, low, high)
    elif as_type == FLOAT_COLUMN:
        end, value = _parse_float(place)
    elif as_type == BOOLEAN_COLUMN:
        end, value = _parse_boolean(place)
    elif as_type == TIMESTAMP_COLUMN:
        end, value = _parse_timestamp(place, signed(high))
    else:
        end = _after_value(place)
    return end, value, 0


@compiled(
    TWO_INTEGERS, BYTES, INTEGER, INTEGER, INTEGER, BYTES, INTEGERS, INTEGERS, WORDS, WORDS, FLAGS,
    INTEGER_ROWS_OUT, INT32_ROWS_OUT, FLAG_ROWS_OUT,
)  # fmt: skip
def parse_rows(  # noqa: C901, PLR0912, PLR0915 - calls with arrays cost more than a value: numba counts references
    data: Bytes,
    offset: int,
    row: int,
    rows: int,
    names: Bytes,
    name_ends: Integers,
    types: Integers,
    low: Words,
    high: Words,
    required: Flags,
    values: Integers,
    lengths: Int32s,
    valid: Flags,
) -> tuple[int, int]:
    """Parses rows `row` to `rows` from byte `offset` on. Returns (number of rows parsed, offset of the next row).

    Args:
        data: UTF-8 text, ending with `PADDING`.
        names: the names of all columns in UTF-8, one after the other, and `PADDING`; `name_ends`: the end of each.
        types: of each column, one of the constants of this module.
        low, high: the limits of an integer column, as absolute values. For timestamps, `high` is the number of digits
            of a fraction of a second.
        required: whether a column must have a value.
        values: [column, row]: the number, the bits of a double, or the address of a text in `data`.
        lengths: [column, row]: bytes of a text without quotes; negative if it has escapes.
        valid: [column, row], all False at first.
    """
    key_places = np.zeros(MAX_KEYS, dtype=np.int64)  # for each position, the key of the previous row
    key_lengths = np.full(MAX_KEYS, -1, dtype=np.int64)
    key_columns = np.zeros(MAX_KEYS, dtype=np.int64)
    rows_seen = np.full(len(types), -1, dtype=np.int64)
    required_columns = 0
    for column in range(len(types)):
        required_columns += required[column]
    begin, all_names = data.ctypes.data, names.ctypes.data
    end_of_text = begin + len(data) - len(PADDING)
    place = after_spaces(begin + offset)
    while row < rows:
        while byte_at(place) == 10 and place < end_of_text:
            place = after_spaces(place + 1)
        start = place
        if byte_at(place) != 123:
            return row, start - begin
        place = after_spaces(place + 1)
        required_count, position = 0, 0
        while byte_at(place) != 125:
            if position:
                if byte_at(place) != 44:
                    return row, start - begin
                place = after_spaces(place + 1)
            if byte_at(place) != 34 or position == MAX_KEYS:
                return row, start - begin
            place += 1
            length, column = key_lengths[position], key_columns[position]
            is_known = length >= 0 and are_equal(key_places[position], place, length)
            if not is_known or byte_at(place + length) != 34:
                end, escaped = end_of_string(place)
                if end == FAILED or escaped:
                    return row, start - begin
                length = end - place
                column = _column_of(place, length, all_names, name_ends)
                key_places[position], key_lengths[position], key_columns[position] = place, length, column
            position += 1
            place = after_spaces(place + length + 1)
            if byte_at(place) != 58:
                return row, start - begin
            place = after_spaces(place + 1)
            if column < 0:
                place = _after_value(place)
            elif rows_seen[column] == row:  # a duplicate key
                place = FAILED
            elif is_word(place, _NULL):
                rows_seen[column] = row
                place += 4
            else:
                rows_seen[column] = row
                required_count += required[column]
                valid[column, row] = True
                place, value, length = _parse_value(place, types[column], low[column], high[column])
                values[column, row] = value
                lengths[column, row] = length
            if place == FAILED:
                return row, start - begin
            place = after_spaces(place)
        place = after_spaces(place + 1)
        if byte_at(place) != 10 or required_count != required_columns:
            return row, start - begin
        place = after_spaces(place + 1)
        row += 1
    return row, place - begin


@compiled(INTEGER, INTEGERS, INT32S, FLAGS, INT32S_OUT, BYTES_OUT)
def copy_texts(places: Integers, lengths: Int32s, valid: Flags, offsets: Int32s, target: Bytes) -> int:
    """Copies the texts of a column into `target` without escapes, and fills `offsets`. Returns the bytes written.

    `places` and `lengths` are those of `parse_rows`, whose `data` must still exist. `target` must hold the sum of the
    lengths and 8 bytes more: a text without its escapes is not longer.
    """
    begin = target.ctypes.data
    at = begin
    offsets[0] = 0
    for row in range(len(places)):
        if valid[row]:
            place, length = places[row], lengths[row]
            if length >= 0:
                for offset in range(0, length, 8):
                    store_word_at(at + offset, load_word_at(place + offset))
                at += length
            else:
                at = copy_escaped(place, place - length, at)
        offsets[row + 1] = at - begin
    return at - begin
