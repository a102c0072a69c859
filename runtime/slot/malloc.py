"""Tuning of glibc's malloc: a process that runs slots keeps freed memory instead of returning it to the system.

Columns of a batch are half a megabyte each, and some thousand are allocated and freed each second. By default glibc
trims the end of its heap and maps large blocks individually; the system then clears each page again at its next use.
That took an eighth of a slot's processor time. Arrow's memory has a pool of its own.
"""

import ctypes
from contextlib import suppress
from typing import Final

import pyarrow as pa

_M_TRIM_THRESHOLD: Final = -1  #: glibc's names and numbers (malloc.h)
_M_MMAP_THRESHOLD: Final = -3
TRIM_THRESHOLD_BYTES: Final = 128 * 1024 * 1024  #: kept free at the end of the heap
MMAP_THRESHOLD_BYTES: Final = 32 * 1024 * 1024  #: larger blocks are mapped, and returned; glibc allows no more


def keep_freed_memory() -> bool:
    """Configures this process and its forks. Returns whether the C library supports it: glibc does."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES) and mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))


def release_freed_memory() -> None:
    """Returns freed memory of Arrow and of the C library to the system, as far as they can."""
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
