"""Where a source puts a barrier among its rows: at the end of a pane, if one is near.

A checkpoint costs least where a pane has just ended: combiners are empty, windows have fired, and there is next to
nothing to copy or to send in two parts. A source that passes ends of panes within milliseconds, since what it reads
lies ready, keeps a trigger until the next of them, and its siblings keep theirs until the same one, as far as their
event time is known in its slot. One that reads what comes in real time has no end of a long pane near: it keeps none.

A trigger is delayed, as it may be on its way; nothing else is changed. Only sources all of whose rows wait for windows
may do this (`core/lead`), since output of others would become visible later. (No counterpart in Flink.)
"""

import math
from collections.abc import Sequence
from typing import Final

from runtime.core.lead import Hearing
from runtime.core.messages import MIN_WATERMARK, Barrier

NEAR_MS: Final = 150.0  #: of wall time, that the pane before took at most
PATIENCE_MS: Final = 200.0  #: of wall time, that a trigger is kept at most
PARTS: Final = 16  #: a batch that shall end with a pane is no smaller than this part of others


class Placement:
    """One source subtask's. `now` is monotonic milliseconds."""

    def __init__(self, hearings: Sequence[Hearing] = ()) -> None:
        self._hearings = hearings
        self._pane_ms = max((hearing.pane_ms for hearing in hearings), default=0)
        self._time = MIN_WATERMARK
        self._rows_per_ms = 0.0  #: of event time
        self._passed_at = -math.inf  #: the end of a pane
        self._near = False
        self._kept: Barrier | None = None
        self._end, self._until = 0, 0.0
        self._is_agreed = False  #: it has been asked whether a sibling has passed the end without a barrier

    def keeps(self, barrier: Barrier, now: float) -> bool:
        """Whether a barrier that has just been asked for shall wait. It is the only one that does."""
        if not self._near or now - self._passed_at > NEAR_MS:
            return False
        self._kept, self._until = barrier, now + PATIENCE_MS
        self._end, self._is_agreed = self._end_after(max(self._time, self._furthest)), False
        return True

    def due_in(self, now: float) -> float | None:
        """How long (ms) until the barrier that is kept must go; None when there is none."""
        if self._kept is None:
            return None
        return 0.0 if self._time + 1 >= self._end else max(0.0, self._until - now)

    def release(self) -> Barrier | None:
        kept, self._kept = self._kept, None
        return kept

    def most(self, rows: int) -> int:
        """How many of `rows` to read next: those that are thought to lie before the end, if a barrier waits for it."""
        if self._kept is None:
            return rows
        left = (self._end - 1 - self._time) * self._rows_per_ms
        return min(rows, max(rows // PARTS, math.ceil(left)))

    def advanced(self, time: int, rows: int, now: float) -> None:
        """A batch of `rows` has brought the source's event time to `time` (ms)."""
        if time <= self._time or not self._pane_ms:
            return
        if self._pane(time) > self._pane(self._time):
            self._near, self._passed_at = rows > 0 and now - self._passed_at <= NEAR_MS, now
        self._rows_per_ms = rows / (time - self._time)
        self._time = time
        if self._kept and time + 1 >= self._end and not self._is_agreed:
            self._end, self._is_agreed = max(self._end, self._end_after(self._furthest)), True

    def none_came(self) -> None:
        """What lay ready has been read: nobody knows when the pane will end."""
        self._near, self._until = False, 0.0

    @property
    def _furthest(self) -> int:
        return max(hearing.furthest for hearing in self._hearings)

    def _end_after(self, time: int) -> int:
        return (self._pane(time) + 1) * self._pane_ms

    def _pane(self, time: int) -> int:
        """In which the next row may lie."""
        return (time + 1) // self._pane_ms
