"""Constants of the key hash, which is part of the checkpoint format. Its definition: `index.hashing`."""

from typing import Final

import numpy as np

MIX_1: Final = np.uint64(0xFF51AFD7ED558CCD)
MIX_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
MIX_SHIFT_BITS: Final = np.uint64(33)
COMBINE_MULTIPLIER: Final = np.uint64(0xD6E8FEB86659FD93)
NULL_HASH: Final = np.uint64(0x9E3779B97F4A7C15)
PIECE_BYTES: Final = 64

#: Kinds of the words that `hashes.hash_rows` reads.
INTEGER_WORDS, FLOAT_WORDS, HASHED_WORDS = range(3)
