"""Kernel of the blocks of row ids in `index.blocks`, whose layout is there."""

from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.kernels.hashes import Integers
from runtime.kernels.jit import FLAG, INT32S, INTEGER, INTEGER_ROWS, INTEGERS, INTEGERS_OUT, compiled


@compiled(FLAG, INTEGER_ROWS, INTEGERS, INTEGER, INT32S, INTEGERS_OUT)
def find(codes: Integers, tail: Integers, low: int, row_ids: npt.NDArray[np.int32], results: Integers) -> Any:
    """`results[i]` becomes the row id of key i, or -1. Returns False if a key has another tail; `results` is then void.

    Args:
        codes: the keys, shape (codes per key, keys).
        tail: the codes of the block after the first.
        low, row_ids: by first code minus `low`: row id + 1; 0: no key.
    """
    for place in range(len(tail)):
        for row in range(codes.shape[1]):
            if codes[place + 1, row] != tail[place]:
                return False
    for row in range(codes.shape[1]):
        offset = np.uint64(codes[0, row]) - np.uint64(low)  # wraps round where the key lies below
        results[row] = np.int64(row_ids[offset]) - 1 if offset < np.uint64(len(row_ids)) else -1
    return True
