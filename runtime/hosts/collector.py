"""Python's garbage collector in a process that runs slots: kept from walking what lives for ever.

Rows are made and dropped by the thousand between two looks of the collector. With Python's own settings it takes many
of them for objects that stay, and so walks all modules and classes of the process again and again: that doubles what
rows with lists cost, and shows as pauses. Here it still finds cycles that authors leave behind, but looks less often,
and only at what a job has made. It counts objects, and three of them may hold a batch of megabytes: so it looks also
when the process has grown.
"""

import gc
from collections.abc import Callable
from typing import Final

import psutil

_YOUNG: Final = 10_000  #: objects that are made, less those that are freed, before it looks; Python's own is 700
GROWN_BYTES: Final = 64 * 1024 * 1024
_FULL: Final = 10  #: of so many looks at young objects one is at all that the job has made


def settle() -> None:
    """Call it when everything is imported, before each attempt: what earlier ones left behind is freed."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


class Relief:
    """Owned by the loop of one slot: between two steps nothing that an author's function has made is in use.

    Args:
        resident_bytes: how large the process is.
    """

    def __init__(self, resident_bytes: Callable[[], int] = resident_bytes) -> None:
        self._resident_bytes = resident_bytes
        self._least = resident_bytes()  #: since the last look
        self._looks = 0

    def look(self) -> None:
        """Collects if the process has grown by much."""
        now = self._resident_bytes()
        self._least = min(self._least, now)
        if now < self._least + GROWN_BYTES:
            return
        self._looks += 1
        gc.collect(2 if self._looks % _FULL == 0 else 1)
        self._least = self._resident_bytes()
