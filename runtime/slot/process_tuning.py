"""Tuning of a process that runs slots: Python's garbage collector, its lock, and glibc's malloc.

**Collector.** Thousands of rows are created and freed between two collections. With Python's default thresholds many
of them are promoted to the old generation, so all modules and classes are traversed again and again. The traversals
double the cost of rows with lists, and cause pauses. This module makes collections rarer and limits them to objects
that the job has created; cycles that authors leave behind are still found. The collector counts objects, and three
objects may hold megabytes: a collection therefore also runs when the process has grown.

**Lock.** A thread that waits for the interpreter's lock asks for it after an interval, 5 ms by default. A batch between
two slots passes a writing and a reading thread beside busy loops, so it waited for two intervals. The interval is
shorter here.

**malloc.** The process keeps freed memory instead of returning it to the system. Columns of a batch are half a megabyte
each, and some thousand are allocated and freed each second. By default glibc trims the end of its heap and maps large
blocks individually; the system then clears each page again at its next use. The clearing took an eighth of a slot's
processor time. Arrow's memory has a pool of its own.
"""

import ctypes
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psutil
import pyarrow as pa

_YOUNG_THRESHOLD: Final = 10_000  #: allocations minus deallocations before a collection; Python's default is 700
MAX_GROWTH_BYTES: Final = 64 * 1024 * 1024
_FULL_COLLECTION_EVERY: Final = 10  #: every tenth collection covers all objects that the job has created
SWITCH_INTERVAL_S: Final = 0.002
_M_TRIM_THRESHOLD: Final = -1  #: glibc's names and numbers (malloc.h)
_M_MMAP_THRESHOLD: Final = -3
TRIM_THRESHOLD_BYTES: Final = 128 * 1024 * 1024  #: kept free at the end of the heap
MMAP_THRESHOLD_BYTES: Final = 32 * 1024 * 1024  #: larger blocks are mapped, and returned; glibc allows no more


def keep_freed_memory() -> bool:
    """Makes malloc keep freed memory, here and in forks. Returns whether the C library supports it: glibc does."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES) and mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES))


def shorten_switch_interval() -> None:
    """Makes a busy thread release the interpreter's lock soon, here and in forks."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def release_freed_memory() -> None:
    """Returns freed memory of Arrow and of the C library to the system, as far as they can."""
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def freeze_heap() -> None:
    """Frees garbage, then exempts existing objects from collections. Call before each attempt, after all imports.

    Before the first attempt, what a fork has inherited stays frozen: its traversal would copy the pages of all modules.
    """
    if gc.get_threshold()[0] == _YOUNG_THRESHOLD:  # objects of an earlier attempt are frozen, too
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_THRESHOLD, *gc.get_threshold()[1:])


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def cpu_ms() -> float:
    """Time that all threads of this process have spent on the processor."""
    times = psutil.Process().cpu_times()
    return 1000.0 * (times.user + times.system)


class GrowthCollector:
    """Collects garbage when the process has grown. Owned by a slot's loop: between steps no author's function runs.

    Args:
        resident_bytes: returns the resident memory of the process in bytes.
    """

    def __init__(self, resident_bytes: Callable[[], int] = resident_bytes) -> None:
        self._resident_bytes = resident_bytes
        self._min_bytes = resident_bytes()  #: minimum since the last collection
        self._collections = 0

    def collect_on_growth(self) -> None:
        """Collects if the process has grown by `MAX_GROWTH_BYTES`."""
        now = self._resident_bytes()
        self._min_bytes = min(self._min_bytes, now)
        if now < self._min_bytes + MAX_GROWTH_BYTES:
            return
        self._collections += 1
        gc.collect(2 if self._collections % _FULL_COLLECTION_EVERY == 0 else 1)
        self._min_bytes = self._resident_bytes()
