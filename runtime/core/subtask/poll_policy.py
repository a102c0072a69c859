"""The poll policy of a source subtask: batch size, watermark alignment and barrier delay combined."""

from collections.abc import Sequence
from typing import Final

from runtime.core.subtask.barrier_delay import Placement
from runtime.core.subtask.batch_size import BatchSize
from runtime.core.subtask.watermark_alignment import Hearing, Lead

STANDSTILL_MS: Final = 1_000  #: after this time without progress of its watermark, a sibling counts as out of input


class Reading:
    """Mutable, owned by a source subtask. `now` is monotonic milliseconds."""

    def __init__(self, drifts: Sequence[Hearing] = ()) -> None:
        self._size = BatchSize()
        self._lead = Lead(drifts)
        self.placement = Placement(drifts)
        self._awaited: tuple[int, ...] = ()  #: smallest sibling watermarks, as last seen while paused
        self._awaited_since = 0.0

    @property
    def rows(self) -> int:
        """The number of rows to poll."""
        return self.placement.most(self._size.rows)

    def waits_for_slower(self, now: float) -> bool:
        """Whether watermark alignment pauses the source.

        A sibling without input that is not idle holds event time back for ever. The pause for it therefore ends after
        `STANDSTILL_MS`, so that the source can read the rest of its own input.
        """
        if not self._lead.too_far:
            self._awaited = ()
            return False
        slowest = self._lead.slowest
        if slowest != self._awaited:
            self._awaited, self._awaited_since = slowest, now
        return now - self._awaited_since < STANDSTILL_MS

    def came(self, rows: int, asked: int, now: float) -> None:
        """A poll for `asked` rows returned `rows`. A poll shortened by a held barrier does not tune the batch size."""
        if asked < self._size.rows:
            self._size.none_came()
        else:
            self._size.came(rows, now)
        self._lead.polled()

    def none_came(self) -> None:
        self._size.none_came()
        self.placement.none_came()

    def not_asked(self) -> None:
        """Watermark alignment paused the source."""
        self._size.none_came()
