"""Durations that the state of an operator depends on, such as the size of a window, and their changes at a restore.

The state of a window or session was formed by its durations. Under another size the restored panes would be emitted in
other windows, some rows twice and some never. Under another gap, sessions that belong together would stay apart. A
restore refuses both. An interval join keeps every row that may match within its bounds. So it may continue with
narrower bounds; with wider bounds, matching rows may be gone.
"""

from collections.abc import Iterator, Mapping
from typing import Final

WINDOW_SIZE: Final = "window size"
WINDOW_SLIDE: Final = "window slide"
SESSION_GAP: Final = "session gap"
WITHIN: Final = "within"  #: of `deduplicate`
LOWER_BOUND: Final = "lower bound"
UPPER_BOUND: Final = "upper bound"


def window_durations(size_ms: int, slide_ms: int) -> dict[str, int]:
    return {WINDOW_SIZE: size_ms, WINDOW_SLIDE: slide_ms}


def invalid_changes(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    """The changes that make the state unreadable. Durations that only one side knows are not compared."""
    for name in before.keys() & now.keys():
        if not _is_valid(name, before[name], now[name]):
            yield f"{name} is {before[name]} ms in the checkpoint and {now[name]} ms in the job"


def _is_valid(name: str, before: int, now: int) -> bool:
    """Whether state that was formed by a duration of `before` ms can be read under `now` ms."""
    if name == LOWER_BOUND:
        return now >= before
    return now <= before if name == UPPER_BOUND else now == before
