"""Throws rows away and keeps count of them: for measuring, and for showing that every row came exactly once.

The count and the sums are list state, so they are as exactly-once as the rows: each checkpoint's manifest holds them
under the name `discarded`, one entry per subtask. (A restore deals no list entries of subtasks that had finished.)
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.checkpoint import CommitPermit
from runtime.ports import OperatorContext, SinkCommitter, SinkWriter

STATE: Final = "discarded"
_MASK: Final = 2**64 - 1


@dataclass(frozen=True)
class DiscardSink:
    """Counts rows and adds up every integer column, modulo 2**64."""

    guarantee: ClassVar[str] = "exactly-once"

    def writer(self) -> "DiscardWriter":
        return DiscardWriter()

    def committer(self) -> "NoCommitter":
        return NoCommitter()

    def check(self) -> None:
        """Nothing can be wrong."""


class DiscardWriter(SinkWriter):
    def __init__(self) -> None:
        self._rows = 0
        self._sums: Counter[str] = Counter()

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._state = context.state.list_state(STATE)
        self._rows, self._sums = totals(self._state.get())

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._context.count("discarded_rows", batch.num_rows)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_integer(column.type):
                self._sums[name] += pc.sum(column).as_py() or 0

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        """Nothing has to be committed; the totals go into the snapshot that follows."""
        self._state.replace([{"rows": self._rows, "sums": {name: s & _MASK for name, s in self._sums.items()}}])
        return ()


class NoCommitter(SinkCommitter):
    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        return 0


def totals(entries: Iterable[Any]) -> tuple[int, Counter[str]]:
    """Adds up entries of the state: the rows, and the sum of each integer column by its name."""
    rows, sums = 0, Counter[str]()
    for entry in entries:
        rows += entry["rows"]
        sums.update(entry["sums"])
    return rows, Counter({name: value & _MASK for name, value in sums.items()})
