"""Tuning of Python's garbage collector in a process that runs slots.

Thousands of rows are created and freed between two collections. With Python's default thresholds many of them are
promoted to the old generation, so all modules and classes are traversed again and again. That doubles the cost of rows
with lists, and causes pauses. Here collections are rarer and cover only objects that the job has created; cycles that
authors leave behind are still found. The collector counts objects, and three objects may hold megabytes: a collection
therefore also runs when the process has grown.
"""

import gc
from collections.abc import Callable
from typing import Final

import psutil

_YOUNG: Final = 10_000  #: allocations minus deallocations before a collection; Python's default is 700
GROWN_BYTES: Final = 64 * 1024 * 1024
_FULL: Final = 10  #: every tenth collection covers all objects that the job has created


def settle() -> None:
    """Frees garbage, then exempts existing objects from collections. Call before each attempt, after all imports."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


class Relief:
    """Collects when the process has grown. Owned by a slot's loop: between steps, no author's function holds objects.

    Args:
        resident_bytes: size of the process.
    """

    def __init__(self, resident_bytes: Callable[[], int] = resident_bytes) -> None:
        self._resident_bytes = resident_bytes
        self._least = resident_bytes()  #: minimum since the last collection
        self._looks = 0

    def look(self) -> None:
        """Collects if the process has grown by `GROWN_BYTES`."""
        now = self._resident_bytes()
        self._least = min(self._least, now)
        if now < self._least + GROWN_BYTES:
            return
        self._looks += 1
        gc.collect(2 if self._looks % _FULL == 0 else 1)
        self._least = self._resident_bytes()
