"""Python's garbage collector in a process that runs slots: kept from walking what lives for ever.

Rows are made and dropped by the thousand between two looks of the collector. With Python's own settings it takes many
of them for objects that stay, and so walks all modules and classes of the process again and again: that doubles what
rows with lists cost, and shows as pauses. Here it still finds cycles that authors leave behind, but looks less often,
and only at what a job has made.
"""

import gc
from typing import Final

_YOUNG: Final = 10_000  #: objects that are made, less those that are freed, before it looks; Python's own is 700


def settle() -> None:
    """Call it when everything is imported, before each attempt: what earlier ones left behind is freed."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
