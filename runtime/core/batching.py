"""How many rows a source is asked for at a time: as many as its job takes in about the same short time.

Large batches spare work per batch; but whatever a slot has begun it finishes, and a barrier waits behind it. So the
size follows the time from one batch to the next. That has in it all that a batch costs: the rest of the slot's work
and, where credit was awaited, the work of other slots. One that took long once, as when state was captured, is followed
by larger ones again: else a slot whose other work alone takes a while would be left with the smallest for ever. It
knows neither what is read nor a clock.
"""

from typing import Final

FIRST_ROWS: Final = 8_192
LEAST_ROWS: Final = 64  #: only reached where a few hundred rows take long: what a batch costs by itself is little then
MOST_ROWS: Final = 65_536
SHORT_MS: Final = 10.0
LONG_MS: Final = 50.0
GROWTH: Final = 16  #: in between, a batch is larger than the one before by this part of it


class BatchSize:
    """Mutable, owned by one source subtask."""

    def __init__(self) -> None:
        self.rows = FIRST_ROWS  #: to ask for
        self._since_ms: float | None = None  #: when the batch before came
        self._got = 0  #: rows of it
        self._asked = 0

    def came(self, rows: int, at_ms: float) -> None:
        """A batch of `rows`, of those that were asked for, came at `at_ms`."""
        asked = self.rows
        if self._since_ms is not None:
            self._adapt(at_ms - self._since_ms)
        self._since_ms, self._got, self._asked = at_ms, rows, asked

    def none_came(self) -> None:
        """There was nothing to read, or it is not to be read yet: the time until then says nothing about the job."""
        self._since_ms = None

    def _adapt(self, took_ms: float) -> None:
        """`took_ms` is how long the job had the batch before."""
        if took_ms > LONG_MS:
            self.rows = max(LEAST_ROWS, min(self.rows, self._got) // 2)
        elif self._got >= self._asked:
            more = self.rows if took_ms < SHORT_MS else self.rows // GROWTH
            self.rows = min(MOST_ROWS, self.rows + more)
