"""How a source subtask is read: how much at a time, whether it waits for slower ones, where barriers lie.

It puts these three together and decides none of them; it knows neither the source nor a clock.
"""

from collections.abc import Sequence
from typing import Final

from runtime.core.batching import BatchSize
from runtime.core.lead import Hearing, Lead
from runtime.core.placement import Placement

STANDSTILL_MS: Final = 1_000  #: a sibling whose event time stands still for so long has run dry, or nearly


class Reading:
    """Mutable, owned by one source subtask. `now` is monotonic milliseconds."""

    def __init__(self, hearings: Sequence[Hearing] = ()) -> None:
        self._size = BatchSize()
        self._lead = Lead(hearings)
        self.placement = Placement(hearings)
        self._awaited: tuple[int, ...] = ()  #: event times of the slowest siblings, as last seen while waiting
        self._awaited_since = 0.0

    @property
    def rows(self) -> int:
        """How many to ask for."""
        return self.placement.most(self._size.rows)

    def waits_for_slower(self, now: float) -> bool:
        """Whether it is so far ahead of others that it should wait.

        A sibling that has run dry brings nothing, and event time does not go on without it unless it is idle. It is
        waited for no longer than `STANDSTILL_MS`, or the source would never read the rest of its own input.
        """
        if not self._lead.too_far:
            self._awaited = ()
            return False
        slowest = self._lead.slowest
        if slowest != self._awaited:
            self._awaited, self._awaited_since = slowest, now
        return now - self._awaited_since < STANDSTILL_MS

    def came(self, rows: int, asked: int, now: float) -> None:
        """A batch of `rows`, of those that were asked for."""
        if asked < self._size.rows:
            self._size.none_came()
        else:
            self._size.came(rows, now)
        self._lead.polled()

    def none_came(self) -> None:
        self._size.none_came()
        self.placement.none_came()

    def not_asked(self) -> None:
        """It waits for others."""
        self._size.none_came()
