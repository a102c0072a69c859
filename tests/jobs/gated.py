"""A source that reads as far as the test lets it, writes down how it was opened, and a step that fails when told to."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from runtime.ports import OperatorContext
from tests.jobs.numbers import Numbers, NumbersReader
from tests.shared import Shared


@dataclass(frozen=True)
class Opening:
    """One opening of a reader: in which attempt, and which row of each of its splits is next."""

    token: int
    index: int
    restored: bool
    positions: dict[int, int]
    noted: Any


@dataclass(eq=False)
class Gated(Shared):
    """As `Numbers`, unbounded; `total` may be raised while the job runs."""

    total: int
    splits: int = 4
    batch: int = 10
    keys: int = 7
    note: Callable[[], Any] = lambda: None  #: called at each opening, in the test's process
    opened: list[Opening] = field(default_factory=list)
    numbers_rows: bool = False
    bounded = False
    guarantee = "exactly-once"

    def reader(self) -> "GatedReader":
        return GatedReader(self)

    def check(self) -> None:
        return None

    def on_open(self, token: int, index: int, restored: bool, positions: dict[int, int]) -> None:
        self.opened.append(Opening(token, index, restored, positions, self.note()))

    @property
    def numbers(self) -> Numbers:
        """What it has to offer at present."""
        return Numbers(total=self.total, splits=self.splits, batch=self.batch, keys=self.keys, unbounded=True)


class GatedReader(NumbersReader):
    def __init__(self, gate: Gated) -> None:
        super().__init__(gate.numbers)
        self._gate = gate

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._source = self._gate.numbers
        return super().poll(max_rows)

    def watermark(self) -> int | None:
        """Never known: windows behind it fire at a drain."""
        return None

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        column = self._table.column("next")
        positions = {split: int(column[slot]) for split, slot in zip(self._mine, self._slots, strict=True)}
        self._gate.on_open(int(context.token), context.index, context.restored, positions)


class Bomb(Shared):
    """Passes batches on; once armed, the next one fails it."""

    def __init__(self) -> None:
        self._armed = threading.Event()

    def arm(self) -> None:
        self._armed.set()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._armed.is_set():
            self._armed.clear()
            raise RuntimeError("the bomb went off")
        return batch
