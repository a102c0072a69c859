"""Discards rows and counts them, for benchmarks and for tests of exactly-once processing.

The count and the sums are list state, so they are exactly-once as well. The manifest of each checkpoint holds them
under the name `discarded`, an entry per subtask. (A restore does not redistribute list entries of finished subtasks.)
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from runtime.connectors.sinks.no_committer import NoCommitter
from runtime.ports import OperatorContext, SinkWriter

STATE_NAME: Final = "discarded"
_SUMS_FIELD: Final = "sums"  #: as decimal text, because JSON numbers are limited to 64 bits
_INT64_LIMIT: Final = 2**63
_LOW_HALF: Final = 2**32 - 1


@dataclass(frozen=True)
class DiscardSink:
    """Counts rows and adds up every integer column. Sums have no size limit."""

    guarantee: ClassVar[str] = "exactly-once"
    has_independent_writers: ClassVar[bool] = True

    def writer(self) -> "DiscardWriter":
        return DiscardWriter()

    def committer(self) -> NoCommitter:
        return NoCommitter()

    def check(self) -> None:
        """Never raises: there are no settings to check."""


class DiscardWriter(SinkWriter):
    def __init__(self) -> None:
        self._rows = 0
        self._sums: Counter[str] = Counter()

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._state = context.state.list_state(STATE_NAME)
        self._rows, self._sums = totals(self._state.get())

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._context.count("discarded_rows", batch.num_rows)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_integer(column.type):
                self._sums[name] += _sum(column)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        """Writes the totals to list state, for the snapshot that follows. There is nothing to commit."""
        self._state.replace([{"rows": self._rows, _SUMS_FIELD: {name: str(sum_) for name, sum_ in self._sums.items()}}])
        return ()


def totals(entries: Iterable[Any]) -> tuple[int, Counter[str]]:
    """Totals of the state entries: the number of rows, and the sum of each integer column by name."""
    rows, sums = 0, Counter[str]()
    for entry in entries:
        rows += entry["rows"]
        sums.update({name: int(value) for name, value in entry[_SUMS_FIELD].items()})
    return rows, sums


def _sum(column: pa.Array) -> int:
    """The exact sum. Arrow's sum wraps at 64 bits; where it may wrap, the 32-bit halves are summed separately."""
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py() or 0, bounds["max"].as_py() or 0
    if max(high, -low) * len(column) < _INT64_LIMIT:
        return pc.sum(column).as_py() or 0
    upper = pc.shift_right(column, pa.scalar(32, column.type))
    lower = pc.bit_wise_and(column, pa.scalar(_LOW_HALF, column.type))
    return (int(pc.sum(upper).as_py()) << 32) + int(pc.sum(lower).as_py())
