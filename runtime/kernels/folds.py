"""Kernels that fold rows into state columns at given positions."""

from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.kernels.hashes import Flags, Integers
from runtime.kernels.jit import FLAG, FLAGS_OUT, FLOATS, FLOATS_OUT, INTEGERS, INTEGERS_OUT, NOTHING, compiled

Floats = npt.NDArray[np.float64]


@compiled(NOTHING, INTEGERS, INTEGERS_OUT)
def count_rows(at: Integers, counts: Integers) -> None:
    """Adds 1 to `counts[at[i]]` for each row i."""
    for row in range(len(at)):
        counts[np.uint64(at[row])] += 1


@compiled(FLAG, INTEGERS, INTEGERS, INTEGERS_OUT)
def fits_int64(at: Integers, values: Integers, sums: Integers) -> Any:
    """Whether no sum can leave 64 bits when `values[i]` is added to `sums[at[i]]`, in any order.

    Bounds the magnitudes of values and sums from above, in one pass; may refuse rows that fit.
    """
    low = high = least = greatest = np.int64(0)
    for row in range(len(at)):
        low, high = min(low, values[row]), max(high, values[row])
        before = sums[np.uint64(at[row])]
        least, greatest = min(least, before), max(greatest, before)
    rows = np.float64(len(at))
    bound = max(np.float64(high), -np.float64(low)) * rows + max(np.float64(greatest), -np.float64(least))
    return bound < 9.2e18  # 2**63 is 9.223e18; rounding is far smaller


@compiled(NOTHING, INTEGERS, INTEGERS, INTEGERS_OUT, FLAGS_OUT)
def add_integers(at: Integers, values: Integers, sums: Integers, valid: Flags) -> None:
    """Adds `values[i]` to `sums[at[i]]`, and marks the sum as valid."""
    for row in range(len(at)):
        place = np.uint64(at[row])
        sums[place] += values[row]
        valid[place] = True


@compiled(NOTHING, INTEGERS, FLOATS, FLOATS_OUT, FLAGS_OUT)
def add_floats(at: Integers, values: Floats, sums: Floats, valid: Flags) -> None:
    """As `add_integers`; each sum is rounded after each row, in the order of the rows."""
    for row in range(len(at)):
        place = np.uint64(at[row])
        sums[place] += values[row]
        valid[place] = True
