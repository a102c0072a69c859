"""A digest of the rows of a split that does not depend on their order.

If the rows come out of a shuffle, a repeated computation gives the same rows in another order. The digest is the number
of rows with the sum of their 64-bit hashes modulo 2^64. Different rows collide with a probability of about 2^-64.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runtime.state.index.hashing import Hashes, hash_column, mix

_HASH_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


def digest_of(split: Path) -> tuple[int, int]:
    """The number of rows in a Parquet file, and the sum of their hashes modulo 2^64."""
    rows, total = 0, 0
    with pq.ParquetFile(split) as file:
        for batch in file.iter_batches():
            rows += batch.num_rows
            total += int(_row_hashes(batch).sum(dtype=np.uint64))
    return rows, total % 2**64


def _row_hashes(batch: pa.RecordBatch) -> Hashes:
    hashes = np.zeros(batch.num_rows, dtype=np.uint64)
    for column in batch.columns:
        hashes = mix(hashes * _HASH_MULTIPLIER + _hashes(column))
    return hashes


def _hashes(column: pa.Array) -> Hashes:
    """Hashes of the values. Types that cannot be keys, such as lists, are hashed by the text of each value."""
    try:
        return hash_column(column)
    except TypeError:
        texts = (repr(value).encode(errors="surrogatepass") for value in column.to_pylist())
        digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
        return np.frombuffer(digests, dtype="<u8")
