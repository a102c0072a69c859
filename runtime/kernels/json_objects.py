"""Compiled parser of JSON objects with known columns: text to numpy columns, without the GIL.

The kernel accepts a subset of JSON and stops at the first row outside of it: an unusual spelling of a value, a key with
an escape, a duplicate key, a missing value of a required column, or a malformed row. The caller parses such a row by
Arrow. In the subset the kernel yields the values that Arrow yields.

1. The keys of consecutive rows mostly have the same order. For each position in an object, the kernel stores the place
   of the previous row's key and the column of that key. A key with equal bytes needs no search.
2. A number with a fraction is rounded by the algorithm of Eisel and Lemire (Lemire: Number Parsing at a Gigabyte per
   Second, 2021). It multiplies the digits by a power of five with 128 bits. Subnormal numbers are outside the subset.
3. Texts are located first and copied when the size of each column is known.

Every loop over bytes ends at a line feed, which no token contains. Bytes are read in words, up to 8 bytes ahead.
Therefore the text must end with `PADDING`.
"""

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from runtime.kernels.jit import (
    BYTES,
    BYTES_OUT,
    CODE_ROWS_OUT,
    FLAG_ROWS_OUT,
    FLAGS,
    HASHES,
    INT32_ROWS_OUT,
    INT32S,
    INT32S_OUT,
    INTEGER,
    INTEGERS,
    PLACE,
    compiled,
    load_word_at,
    outlined,
    store_byte_at,
    store_word_at,
)

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

SKIPPED_COLUMN: Final = 0  #: checked, but not parsed
INTEGER_COLUMN: Final = 1
FLOAT_COLUMN: Final = 2
BOOLEAN_COLUMN: Final = 3
TEXT_COLUMN: Final = 4
TIMESTAMP_COLUMN: Final = 5

PADDING: Final = b"\n" * 16
MAX_KEYS: Final = 4_096  #: positions in an object with a stored key
_MAX_DEPTH: Final = 64  #: of skipped values
_FAILED: Final = -1
_MIN_POWER: Final = -342
_MAX_POWER: Final = 308


def _powers_of_five() -> npt.NDArray[np.uint64]:
    """The 128 leading bits of 5^q for q from -342 to 308, as (high, low) words. Negative powers are rounded up."""
    words = []
    for power in range(_MIN_POWER, _MAX_POWER + 1):
        five = 5 ** abs(power)
        if power < 0:
            exponent = (five - 1).bit_length()
            value = 2 ** (exponent + 127 if power >= -27 else 2 * exponent + 128) // five + 1
        else:
            value = five << 128
        value >>= max(0, value.bit_length() - 128)
        value <<= 128 - value.bit_length()
        words.append((value >> 64, value & (2**64 - 1)))
    return np.array(words, dtype=np.uint64)


_POWERS: Final = _powers_of_five()
_MONTH_DAYS: Final = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_TENS: Final = np.array([10**power for power in range(10)], dtype=np.int64)

_TRUE, _FALS, _NULL = (np.uint64(int.from_bytes(text, "little")) for text in (b"true", b"fals", b"null"))
_FOUR_BYTES: Final = np.uint64(0xFFFFFFFF)
_signed: Final[Callable[[Any], int]] = cast("Any", np.int64)  # for mypy, an np.int64 is no int
_EACH: Final = np.uint64(0x0101010101010101)
_TOP_BITS: Final = np.uint64(0x8080808080808080)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = np.uint64(0x2020202020202020)


@outlined
def byte_at(place: int) -> int:
    return _signed(load_word_at(place) & np.uint64(0xFF))


@outlined
def _special_bytes(word: np.uint64) -> np.uint64:
    """A word that is 0 if no byte of `word` is a quote, backslash or control character.

    Otherwise its lowest bit is the top bit of the first such byte; higher bits have no meaning.
    """
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    found = ((quotes - _EACH) & ~quotes) | ((backslashes - _EACH) & ~backslashes) | ((word - _SPACES) & ~word)
    return found & _TOP_BITS


@outlined
def _first_byte(marks: np.uint64) -> int:
    """The index of the byte with the lowest bit of `marks`, which has top bits of bytes only."""
    lowest = marks & (~marks + np.uint64(1))
    below = ((lowest - np.uint64(1)) & _TOP_BITS) >> np.uint64(7)
    return _signed((below * _EACH) >> np.uint64(56))


@outlined
def _is_word(place: int, word: np.uint64) -> bool:
    """Whether the four bytes at `place` are `word`."""
    return _signed(load_word_at(place) & _FOUR_BYTES) == _signed(word)


@outlined
def _after_spaces(place: int) -> int:
    while byte_at(place) == 32 or byte_at(place) == 9 or byte_at(place) == 13:
        place += 1
    return place


@outlined
def _end_of_string(place: int) -> tuple[int, bool]:
    """(place of the closing quote, whether there are escapes) of a string; `place`: after the opening quote."""
    escaped = False
    while True:
        marks = _special_bytes(load_word_at(place))
        if marks == np.uint64(0):
            place += 8
            continue
        place += _first_byte(marks)
        byte = byte_at(place)
        if byte == 34:
            return place, escaped
        if byte < 32:
            return _FAILED, escaped
        if byte == 92:
            escaped = True
            place += 1
            escape = byte_at(place)
            if escape == 117:
                code = _hex(place + 1)
                if code < 0 or 0xDC00 <= code < 0xE000:
                    return _FAILED, escaped
                place += 4
                if 0xD800 <= code < 0xDC00:
                    if byte_at(place + 1) != 92 or byte_at(place + 2) != 117:
                        return _FAILED, escaped
                    code = _hex(place + 3)
                    if code < 0xDC00 or code >= 0xE000:
                        return _FAILED, escaped
                    place += 6
            elif _unescaped(escape) == 0:
                return _FAILED, escaped
        place += 1


@outlined
def _hex(place: int) -> int:
    value = 0
    for digit in range(4):
        byte = byte_at(place + digit)
        if 48 <= byte <= 57:
            value = value * 16 + byte - 48
        elif 65 <= (byte & 0xDF) <= 70:
            value = value * 16 + (byte & 0xDF) - 55
        else:
            return _FAILED
    return value


@outlined
def _unescaped(escape: int) -> int:
    if escape == 34 or escape == 92 or escape == 47:
        return escape
    if escape == 110:
        return 10
    if escape == 116:
        return 9
    if escape == 114:
        return 13
    if escape == 98:
        return 8
    if escape == 102:
        return 12
    return 0


@outlined
def _number(place: int) -> tuple[int, bool, np.uint64, int, bool]:
    """(end, negative, digits, power of ten, whether it is an integer) of a number; end -1: outside the subset."""
    negative = byte_at(place) == 45
    if negative:
        place += 1
    digits = np.uint64(0)
    first = place
    while 48 <= byte_at(place) <= 57:
        digits = digits * np.uint64(10) + np.uint64(byte_at(place) - 48)
        place += 1
    count = place - first
    if count == 0 or (count > 1 and byte_at(first) == 48):
        return _FAILED, negative, digits, 0, True
    power = 0
    integer = True
    if byte_at(place) == 46:
        integer = False
        place += 1
        start = place
        while 48 <= byte_at(place) <= 57:
            digits = digits * np.uint64(10) + np.uint64(byte_at(place) - 48)
            place += 1
        power = start - place
        if power == 0:
            return _FAILED, negative, digits, 0, integer
        if count == 1 and byte_at(first) == 48:  # leading zeros are no significant digits
            count = 0
            while start < place and byte_at(start) == 48:
                start += 1
        count += place - start
    if count > 19:
        return _FAILED, negative, digits, 0, integer
    if byte_at(place) == 101 or byte_at(place) == 69:
        integer = False
        place += 1
        below = byte_at(place) == 45
        if below or byte_at(place) == 43:
            place += 1
        exponent = 0
        start = place
        while 48 <= byte_at(place) <= 57 and place - start < 4:
            exponent = exponent * 10 + byte_at(place) - 48
            place += 1
        if place == start or place - start > 3:
            return _FAILED, negative, digits, 0, integer
        power += -exponent if below else exponent
    return place, negative, digits, power, integer


@outlined
def _high_product(left: np.uint64, right: np.uint64) -> np.uint64:
    """The high 64 bits of a product of two words of 64 bits."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    low_left, high_left, low_right, high_right = left & mask, left >> half, right & mask, right >> half
    low = low_left * low_right
    middle = high_left * low_right + (low >> half)
    other = low_left * high_right + (middle & mask)
    return high_left * high_right + (middle >> half) + (other >> half)


@outlined
def _float_bits(digits: np.uint64, power: int) -> int:
    """The bits of the double nearest to `digits` * 10^`power`; -1: outside the subset."""
    if digits == np.uint64(0):
        return _signed(0)
    if power < -300 or power > 280:
        return _signed(_FAILED)
    shift = np.uint64(0)
    for step in (32, 16, 8, 4, 2, 1):
        if digits >> np.uint64(64 - step) == np.uint64(0):
            digits <<= np.uint64(step)
            shift += np.uint64(step)
    one, three = np.uint64(1), np.uint64(3)
    high_power, low_power = _POWERS[power - _MIN_POWER, 0], _POWERS[power - _MIN_POWER, 1]
    high, low = _high_product(digits, high_power), digits * high_power
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        more = _high_product(digits, low_power)
        low += more
        if more > low:
            high += one
        if low == np.uint64(0xFFFFFFFFFFFFFFFF):
            return _signed(_FAILED)
    upper = high >> np.uint64(63)
    mantissa = high >> (upper + np.uint64(9))
    exponent = ((217706 * power) >> 16) + 63 + _signed(upper) - _signed(shift) + 1023
    if exponent <= 0 or exponent >= 2046:
        return _signed(_FAILED)
    if low <= one and -4 <= power <= 23 and mantissa & three == one and mantissa << (upper + np.uint64(9)) == high:
        mantissa &= ~one  # exactly between two doubles: to the even one
    mantissa += mantissa & one
    mantissa >>= one
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        exponent += 1
    return _signed(mantissa & np.uint64((1 << 52) - 1)) | (_signed(exponent) << 52)


@outlined
def _two_digits(place: int) -> int:
    tens, ones = byte_at(place) - 48, byte_at(place + 1) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -(1 << 20)
    return tens * 10 + ones


@outlined
def _timestamp(place: int, end: int, fraction_digits: int) -> tuple[bool, int]:
    """(whether it is valid, value) of `YYYY-MM-DDTHH:MM:SS[.fraction][Z|±HH:MM]` in units of the column."""
    length = end - place
    if (
        length < 19
        or byte_at(place + 4) != 45
        or byte_at(place + 7) != 45
        or byte_at(place + 13) != 58
        or byte_at(place + 16) != 58
    ):
        return False, 0
    if byte_at(place + 10) != 84 and byte_at(place + 10) != 32:
        return False, 0
    century, of_century = _two_digits(place), _two_digits(place + 2)
    year, month, day = century * 100 + of_century, _two_digits(place + 5), _two_digits(place + 8)
    hour, minute, second = _two_digits(place + 11), _two_digits(place + 14), _two_digits(place + 17)
    if century < 0 or of_century < 0 or month < 1 or month > 12 or not (0 <= hour < 24):
        return False, 0
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day < 1 or day > _MONTH_DAYS[month - 1] + leap or not (0 <= minute < 60) or not (0 <= second < 60):
        return False, 0
    if fraction_digits == 9 and (year < 1678 or year > 2261):
        return False, 0
    fraction = 0
    place += 19
    if place < end and byte_at(place) == 46:
        place += 1
        start = place
        while place < end and 48 <= byte_at(place) <= 57:
            fraction = fraction * 10 + byte_at(place) - 48
            place += 1
            if place - start > fraction_digits:
                return False, 0
        if place == start:
            return False, 0
        fraction *= _TENS[fraction_digits - (place - start)]
    offset = 0
    if end - place == 1 and byte_at(place) == 90:
        place = end
    elif end - place == 6 and (byte_at(place) == 43 or byte_at(place) == 45) and byte_at(place + 3) == 58:
        hours, minutes = _two_digits(place + 1), _two_digits(place + 4)
        if not (0 <= hours < 24) or not (0 <= minutes < 60):
            return False, 0
        offset = (hours * 60 + minutes) * 60
        if byte_at(place) == 45:
            offset = -offset
        place = end
    if place != end:
        return False, 0
    # Days since 1970-01-01 (Hinnant, days_from_civil).
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719468
    return True, (days * 86400 + hour * 3600 + minute * 60 + second - offset) * _TENS[fraction_digits] + fraction


@outlined
def _after_scalar(place: int) -> int:
    """The end of a text, number, boolean or null that is not parsed; -1: outside the subset."""
    byte = byte_at(place)
    if byte == 34:
        end, _ = _end_of_string(place + 1)
        return end if end == _FAILED else end + 1
    if byte == 116:
        return place + 4 if _is_word(place, _TRUE) else _FAILED
    if byte == 102:
        return place + 5 if (_is_word(place, _FALS) and byte_at(place + 4) == 101) else _FAILED
    if byte == 110:
        return place + 4 if _is_word(place, _NULL) else _FAILED
    end, _, _, power, _ = _number(place)
    return end if power < 280 else _FAILED


@outlined
def _after_value(place: int) -> int:
    """The end of any value, nested or not, that is checked and not parsed; -1: outside the subset."""
    depth, objects = 0, np.uint64(0)  # the lowest bit of `objects`: whether the innermost value is an object
    while True:
        byte = byte_at(place)
        if byte in (123, 91):
            if depth == _MAX_DEPTH:
                return _FAILED
            depth += 1
            objects = (objects << np.uint64(1)) | np.uint64(byte == 123)
            place = _after_spaces(place + 1)
            if byte_at(place) != byte + 2:  # not empty
                if byte == 123:
                    place = _after_key(place)
                    if place == _FAILED:
                        return _FAILED
                continue
        else:
            place = _after_scalar(place)
            if depth == 0 or place == _FAILED:
                return place
            place = _after_spaces(place)
        while byte_at(place) == (125 if objects & np.uint64(1) else 93):
            place += 1
            depth -= 1
            objects >>= np.uint64(1)
            if depth == 0:
                return place
            place = _after_spaces(place)
        if byte_at(place) != 44:
            return _FAILED
        place = _after_spaces(place + 1)
        if objects & np.uint64(1):
            place = _after_key(place)
            if place == _FAILED:
                return _FAILED


@outlined
def _after_key(place: int) -> int:
    """The place of the value behind a key and its colon; -1: outside the subset."""
    if byte_at(place) != 34:
        return _FAILED
    end, _ = _end_of_string(place + 1)
    if end == _FAILED:
        return _FAILED
    place = _after_spaces(end + 1)
    if byte_at(place) != 58:
        return _FAILED
    return _after_spaces(place + 1)


@outlined
def _are_equal(place: int, other: int, length: int) -> bool:
    """Whether `length` bytes at two places are equal."""
    while length > 8:
        if load_word_at(place) != load_word_at(other):
            return False
        place += 8
        other += 8
        length -= 8
    difference = load_word_at(place) ^ load_word_at(other)
    return length == 0 or difference << np.uint64(64 - 8 * length) == np.uint64(0)


@outlined
def _column_of(place: int, length: int, names: int, name_ends: Integers) -> int:
    """The column of a key, or -1 for a key that no column has."""
    start = 0
    for column in range(len(name_ends)):
        if name_ends[column] - start == length and _are_equal(place, names + start, length):
            return column
        start = name_ends[column]
    return -1


@outlined
def _parse_text(place: int) -> tuple[int, int, int]:
    """(end, place, length) of a text; the length is negative if it has escapes. End -1: outside the subset."""
    if byte_at(place) != 34:
        return _FAILED, 0, 0
    end, escaped = _end_of_string(place + 1)
    if end == _FAILED:
        return _FAILED, 0, 0
    return end + 1, place + 1, place + 1 - end if escaped else end - place - 1


@outlined
def _parse_timestamp(place: int, fraction_digits: int) -> tuple[int, int]:
    """(end, value) of a timestamp; end -1: outside the subset."""
    end, start, length = _parse_text(place)
    if end == _FAILED or length < 0:
        return _FAILED, 0
    accepted, value = _timestamp(start, end - 1, fraction_digits)
    return end if accepted else _FAILED, value


@outlined
def _parse_float(place: int) -> tuple[int, int]:
    """(end, bits) of a number as a double; end -1: outside the subset."""
    end, negative, digits, power, _ = _number(place)
    if end == _FAILED:
        return _FAILED, 0
    bits = _float_bits(digits, power)
    return _FAILED if bits == _FAILED else end, bits | (_signed(negative) << 63)


@outlined
def _parse_integer(place: int, low: np.uint64, high: np.uint64) -> tuple[int, int]:
    """(end, value) of an integer from -`low` to `high`; end -1: outside the subset."""
    end, negative, digits, _, integer = _number(place)
    if end == _FAILED or not integer:
        return _FAILED, 0
    if negative:
        return _FAILED if digits > low or digits == np.uint64(0) else end, -_signed(digits)
    return _FAILED if digits > high else end, _signed(digits)


@outlined
def _parse_boolean(place: int) -> tuple[int, int]:
    """(end, 0 or 1) of a boolean; end -1: outside the subset."""
    if _is_word(place, _TRUE):
        return place + 4, 1
    return place + 5 if _is_word(place, _FALS) and byte_at(place + 4) == 101 else _FAILED, 0


@outlined
def _parse_value(place: int, as_type: int, low: np.uint64, high: np.uint64) -> tuple[int, int, int]:
    """(end, value, length of a text) of a value that is not null; end -1: outside the subset."""
    if as_type == TEXT_COLUMN:
        return _parse_text(place)
    end, value = _FAILED, 0
    if as_type == INTEGER_COLUMN:
        end, value = _parse_integer(place, low, high)
    elif as_type == FLOAT_COLUMN:
        end, value = _parse_float(place)
    elif as_type == BOOLEAN_COLUMN:
        end, value = _parse_boolean(place)
    elif as_type == TIMESTAMP_COLUMN:
        end, value = _parse_timestamp(place, _signed(high))
    else:
        end = _after_value(place)
    return end, value, 0


@compiled(
    PLACE, BYTES, INTEGER, INTEGER, INTEGER, BYTES, INTEGERS, INTEGERS, HASHES, HASHES, FLAGS,
    CODE_ROWS_OUT, INT32_ROWS_OUT, FLAG_ROWS_OUT,
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
    place = _after_spaces(begin + offset)
    while row < rows:
        while byte_at(place) == 10 and place < end_of_text:
            place = _after_spaces(place + 1)
        start = place
        if byte_at(place) != 123:
            return row, start - begin
        place = _after_spaces(place + 1)
        found, position = 0, 0
        while byte_at(place) != 125:
            if position:
                if byte_at(place) != 44:
                    return row, start - begin
                place = _after_spaces(place + 1)
            if byte_at(place) != 34 or position == MAX_KEYS:
                return row, start - begin
            place += 1
            length, column = key_lengths[position], key_columns[position]
            is_known = length >= 0 and _are_equal(key_places[position], place, length)
            if not is_known or byte_at(place + length) != 34:
                end, escaped = _end_of_string(place)
                if end == _FAILED or escaped:
                    return row, start - begin
                length = end - place
                column = _column_of(place, length, all_names, name_ends)
                key_places[position], key_lengths[position], key_columns[position] = place, length, column
            position += 1
            place = _after_spaces(place + length + 1)
            if byte_at(place) != 58:
                return row, start - begin
            place = _after_spaces(place + 1)
            if column < 0:
                place = _after_value(place)
            elif rows_seen[column] == row:  # a duplicate key
                place = _FAILED
            elif _is_word(place, _NULL):
                rows_seen[column] = row
                place += 4
            else:
                rows_seen[column] = row
                found += required[column]
                valid[column, row] = True
                place, value, length = _parse_value(place, types[column], low[column], high[column])
                values[column, row] = value
                lengths[column, row] = length
            if place == _FAILED:
                return row, start - begin
            place = _after_spaces(place)
        place = _after_spaces(place + 1)
        if byte_at(place) != 10 or found != required_columns:
            return row, start - begin
        place = _after_spaces(place + 1)
        row += 1
    return row, place - begin


@outlined
def _unescape(place: int, code: int) -> int:
    """The code point of an escape with four digits at `place`; `code`: the value of these digits."""
    if 0xD800 <= code < 0xDC00:
        return 0x10000 + ((code - 0xD800) << 10) + _hex(place + 6) - 0xDC00
    return code


@outlined
def _store_utf8(at: int, code: int) -> int:
    """Stores a code point in UTF-8. Returns the place behind it."""
    if code < 0x80:
        store_byte_at(at, code)
        return at + 1
    more = 1 if code < 0x800 else 2 if code < 0x10000 else 3
    store_byte_at(at, ((0xFF00 >> (more + 1)) & 0xFF) | (code >> (6 * more)))
    for left in range(more - 1, -1, -1):
        at += 1
        store_byte_at(at, 0x80 | ((code >> (6 * left)) & 0x3F))
    return at + 1


@outlined
def _copy_escaped(place: int, end: int, at: int) -> int:
    """Copies a text with escapes to `at`. Returns the end of the copy."""
    while place < end:
        byte = byte_at(place)
        place += 1
        if byte == 92:
            byte = byte_at(place)
            place += 1
            if byte == 117:
                code = _unescape(place, _hex(place))
                place += 10 if code >= 0x10000 else 4
                at = _store_utf8(at, code)
                continue
            byte = _unescaped(byte)
        store_byte_at(at, byte)
        at += 1
    return at


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
                at = _copy_escaped(place, place - length, at)
        offsets[row + 1] = at - begin
    return at - begin
