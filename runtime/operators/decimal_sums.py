"""Sums of decimals: numbers of 128 bits in two words, without their scale."""

from collections.abc import Callable
from functools import partial
from operator import setitem
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from runtime.errors import DataRejected
from runtime.state.columns import DECIMAL_WORDS

DECIMAL_DIGITS: Final = 38  #: of a decimal128
_HIGH_LIMIT: Final = 2**31
_LOW_HALF: Final = 2**32 - 1

Values = npt.NDArray[Any]


def add_decimals(
    sums: Values, at: npt.NDArray[np.intp], values: Values, name: str, signs: Values | None
) -> Callable[[], None]:
    """The change that adds unscaled numbers of 128 bits to `sums`, in quarters that cannot overflow.

    Args:
        at: the position of each value in `sums`.
        name: of the sum, for the error.
        signs: by value, 1 or -1; None: all are added.

    Raises:
        DataRejected: a sum has too many digits.
    """
    row_ids, which = np.unique(at, return_inverse=True)
    totals = _quarters(sums[row_ids])
    for total, quarter in zip(totals, _quarters(values), strict=True):
        np.add.at(total, which, quarter if signs is None else quarter * signs)
    for place in range(3):
        totals[place + 1] += totals[place] >> 32
        totals[place] &= _LOW_HALF
    first, second, third, fourth = totals
    if (np.abs(fourth) >= _HIGH_LIMIT).any():
        raise _decimal_overflow_error(name)
    result = np.empty(len(row_ids), DECIMAL_WORDS)
    result["low"], result["high"] = (second << 32 | first).view(np.uint64), fourth << 32 | third
    low, high = result["low"], result["high"]
    is_above = (high > _DECIMAL_END["high"]) | ((high == _DECIMAL_END["high"]) & (low >= _DECIMAL_END["low"]))
    is_below = (high < _DECIMAL_START["high"]) | ((high == _DECIMAL_START["high"]) & (low <= _DECIMAL_START["low"]))
    if (is_above | is_below).any():
        raise _decimal_overflow_error(name)
    return partial(setitem, sums, row_ids, result)


def _quarters(words: Values) -> list[Values]:
    """The 32-bit quarters of 128-bit numbers as int64, the lowest first; the highest has the sign."""
    low, high = words["low"], words["high"]
    quarters = (low & np.uint64(_LOW_HALF), low >> np.uint64(32), high & _LOW_HALF, high >> 32)
    return [quarter.astype(np.int64) for quarter in quarters]


def unscaled_floats(words: Values) -> Values:
    """The 128-bit numbers as float64."""
    low = words["low"].astype(np.int64)  # the same bits
    is_small = words["high"] == low >> 63  # else a small negative number would vanish beside 2^64
    return np.where(is_small, low, words["high"] * 2.0**64 + words["low"])


def _words_of(number: int) -> Values:
    return np.array((number % 2**64, number >> 64), DECIMAL_WORDS)


#: The limits of a decimal128, both excluded.
_DECIMAL_START: Final = _words_of(-(10**DECIMAL_DIGITS))
_DECIMAL_END: Final = _words_of(10**DECIMAL_DIGITS)


def _decimal_overflow_error(name: str) -> DataRejected:
    return DataRejected(f"the sum {name!r} exceeds {DECIMAL_DIGITS} digits")
