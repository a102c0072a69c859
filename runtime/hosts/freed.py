"""Freed memory in a process that runs slots: kept, instead of given back to the system and asked for again.

Columns of a batch are half a megabyte each, and are made and freed some thousand times a second. glibc gives back what
is free at the end of its heap, and maps large pieces one by one; the system then clears each page anew when it is next
used: an eighth of the processor time of a slot was the system's. Arrow's memory has a pool of its own.
"""

import ctypes
from contextlib import suppress
from typing import Final

import pyarrow as pa

_M_TRIM_THRESHOLD: Final = -1  #: glibc's names and numbers (malloc.h)
_M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES: Final = 128 * 1024 * 1024  #: free at the end of the heap
MAPPED_BYTES: Final = 32 * 1024 * 1024  #: from this size on pieces are mapped, and given back; glibc takes no more


def keep() -> bool:
    """For this process and those that are forked from it. Returns whether its C library can do it: glibc can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES))


def give_back() -> None:
    """Returns freed memory of Arrow and of the C library to the system, as far as they can."""
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
