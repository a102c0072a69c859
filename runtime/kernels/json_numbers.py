"""Parts of the JSON kernels: numbers.

A number with a fraction is rounded by the algorithm of Eisel and Lemire (Lemire: Number Parsing at a Gigabyte per
Second, 2021). It multiplies the digits by a power of five with 128 bits. Subnormal numbers are outside the subset.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from runtime.kernels.jit import outlined
from runtime.kernels.json_texts import FAILED, byte_at, signed

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


@outlined
def number(place: int) -> tuple[int, bool, np.uint64, int, bool]:
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
        return FAILED, negative, digits, 0, True
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
            return FAILED, negative, digits, 0, integer
        if count == 1 and byte_at(first) == 48:  # leading zeros are no significant digits
            count = 0
            while start < place and byte_at(start) == 48:
                start += 1
        count += place - start
    if count > 19:
        return FAILED, negative, digits, 0, integer
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
            return FAILED, negative, digits, 0, integer
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
def float_bits(digits: np.uint64, power: int) -> int:
    """The bits of the double nearest to `digits` * 10^`power`; -1: outside the subset."""
    if digits == np.uint64(0):
        return signed(0)
    if power < -300 or power > 280:
        return signed(FAILED)
    shift = np.uint64(0)
    for step in (32, 16, 8, 4, 2, 1):
        if digits >> np.uint64(64 - step) == np.uint64(0):
            digits <<= np.uint64(step)
            shift += np.uint64(step)
    one, three = np.uint64(1), np.uint64(3)
    high_power, low_power = _POWERS[power - _MIN_POWER, 0], _POWERS[power - _MIN_POWER, 1]
    high, low = _high_product(digits, high_power), digits * high_power
    if high & np.uint64(0x1FF) == np.uint64(0x1FF):
        addend = _high_product(digits, low_power)
        low += addend
        if addend > low:
            high += one
        if low == np.uint64(0xFFFFFFFFFFFFFFFF):
            return signed(FAILED)
    upper = high >> np.uint64(63)
    mantissa = high >> (upper + np.uint64(9))
    exponent = ((217706 * power) >> 16) + 63 + signed(upper) - signed(shift) + 1023
    if exponent <= 0 or exponent >= 2046:
        return signed(FAILED)
    if low <= one and -4 <= power <= 23 and mantissa & three == one and mantissa << (upper + np.uint64(9)) == high:
        mantissa &= ~one  # exactly between two doubles: to the even one
    mantissa += mantissa & one
    mantissa >>= one
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        exponent += 1
    return signed(mantissa & np.uint64((1 << 52) - 1)) | (signed(exponent) << 52)
