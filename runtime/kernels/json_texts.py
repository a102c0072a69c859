"""Parts of the JSON kernels: bytes, strings and their escapes, by address.

Every loop over bytes ends at a line feed, which no token contains. Bytes are read in words, up to 8 bytes ahead.
"""

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from runtime.kernels.jit import load_word_at, outlined, store_byte_at

FAILED: Final = -1  #: in place of an end: the text is outside the subset
_FOUR_BYTES: Final = np.uint64(0xFFFFFFFF)
signed: Final[Callable[[Any], int]] = cast("Any", np.int64)  # for mypy, an np.int64 is no int

_EACH: Final = np.uint64(0x0101010101010101)
_TOP_BITS: Final = np.uint64(0x8080808080808080)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES: Final = np.uint64(0x2020202020202020)


@outlined
def byte_at(place: int) -> int:
    return signed(load_word_at(place) & np.uint64(0xFF))


@outlined
def _special_bytes(word: np.uint64) -> np.uint64:
    """A word that is 0 if no byte of `word` is a quote, backslash or control character.

    Otherwise its lowest bit is the top bit of the first such byte; higher bits have no meaning.
    """
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    marks = ((quotes - _EACH) & ~quotes) | ((backslashes - _EACH) & ~backslashes) | ((word - _SPACES) & ~word)
    return marks & _TOP_BITS


@outlined
def _first_byte(marks: np.uint64) -> int:
    """The index of the byte with the lowest bit of `marks`, which has top bits of bytes only."""
    lowest = marks & (~marks + np.uint64(1))
    below = ((lowest - np.uint64(1)) & _TOP_BITS) >> np.uint64(7)
    return signed((below * _EACH) >> np.uint64(56))


@outlined
def is_word(place: int, word: np.uint64) -> bool:
    """Whether the four bytes at `place` are `word`."""
    return signed(load_word_at(place) & _FOUR_BYTES) == signed(word)


@outlined
def after_spaces(place: int) -> int:
    while byte_at(place) == 32 or byte_at(place) == 9 or byte_at(place) == 13:
        place += 1
    return place


@outlined
def end_of_string(place: int) -> tuple[int, bool]:
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
            return FAILED, escaped
        if byte == 92:
            escaped = True
            place += 1
            escape = byte_at(place)
            if escape == 117:
                code = _hex(place + 1)
                if code < 0 or 0xDC00 <= code < 0xE000:
                    return FAILED, escaped
                place += 4
                if 0xD800 <= code < 0xDC00:
                    if byte_at(place + 1) != 92 or byte_at(place + 2) != 117:
                        return FAILED, escaped
                    code = _hex(place + 3)
                    if code < 0xDC00 or code >= 0xE000:
                        return FAILED, escaped
                    place += 6
            elif _escaped_character(escape) == 0:
                return FAILED, escaped
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
            return FAILED
    return value


@outlined
def _escaped_character(escape: int) -> int:
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
def _code_point(place: int, code: int) -> int:
    """The code point of an escape with four digits at `place`; `code`: the value of these digits."""
    if 0xD800 <= code < 0xDC00:
        return 0x10000 + ((code - 0xD800) << 10) + _hex(place + 6) - 0xDC00
    return code


@outlined
def are_equal(place: int, other: int, length: int) -> bool:
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
def _store_utf8(at: int, code: int) -> int:
    """Stores a code point in UTF-8. Returns the place behind it."""
    if code < 0x80:
        store_byte_at(at, code)
        return at + 1
    continuations = 1 if code < 0x800 else 2 if code < 0x10000 else 3
    store_byte_at(at, ((0xFF00 >> (continuations + 1)) & 0xFF) | (code >> (6 * continuations)))
    for left in range(continuations - 1, -1, -1):
        at += 1
        store_byte_at(at, 0x80 | ((code >> (6 * left)) & 0x3F))
    return at + 1


@outlined
def copy_escaped(place: int, end: int, at: int) -> int:
    """Copies a text with escapes to `at`. Returns the end of the copy."""
    while place < end:
        byte = byte_at(place)
        place += 1
        if byte == 92:
            byte = byte_at(place)
            place += 1
            if byte == 117:
                code = _code_point(place, _hex(place))
                place += 10 if code >= 0x10000 else 4
                at = _store_utf8(at, code)
                continue
            byte = _escaped_character(byte)
        store_byte_at(at, byte)
        at += 1
    return at
