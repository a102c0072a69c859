"""How a source subtask is read: how much at a time, whether it waits for slower ones, where barriers lie.

It puts these three together and decides none of them; it knows neither the source nor a clock.
"""

from collections.abc import Sequence

from runtime.core.batching import BatchSize
from runtime.core.lead import Hearing, Lead
from runtime.core.placement import Placement


class Reading:
    """Mutable, owned by one source subtask. `now` is monotonic milliseconds."""

    def __init__(self, hearings: Sequence[Hearing] = ()) -> None:
        self._size = BatchSize()
        self._lead = Lead(hearings)
        self.placement = Placement(hearings)

    @property
    def rows(self) -> int:
        """How many to ask for."""
        return self.placement.most(self._size.rows)

    @property
    def too_far(self) -> bool:
        """Whether it is so far ahead of others that it should wait."""
        return self._lead.too_far

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
