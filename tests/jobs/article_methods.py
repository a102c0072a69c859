"""The three ways to micro-batches of the article "批处理" (seed 003), which each break, as code of an author.

1. Virtual keys: a key per subtask, so that rows of many keys are batched in the keyed state of one.
2. Operator state: rows are dealt by the author, and wait in a union list.
3. No state: the buffer is emptied in the snapshot.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import weir
from runtime.core.job.key_groups import key_group_owner
from runtime.state.index.hashing import key_groups
from tests.jobs.numbers import SCHEMA
from tests.shared import Shared

CANDIDATES: Final = 12  #: per subtask
VIRTUAL: Final = pa.schema([*SCHEMA, ("virtual", pa.int64())])


@dataclass(eq=False)
class Watch(Shared):
    """What the steps of a run have seen."""

    buffered: list[int] = field(default_factory=list)
    flushed: list[list[int]] = field(default_factory=list)

    def on_row(self, value: int) -> None:
        self.buffered.append(value)

    def on_flush(self, values: list[int]) -> None:
        self.flushed.append(values)


class Located(weir.spi.Operator):
    """Adds the subtask that a row has come to."""

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._index = context.index

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        out.emit(batch.append_column("subtask", pa.array([self._index] * batch.num_rows, pa.int64())))


# ---------------------------------------------------------------- method 1


def route(keys: npt.NDArray[np.int64], parallelism: int) -> npt.NDArray[np.int64]:
    """The author's own choice of a subtask; it need not be the engine's."""
    return (keys * 2_654_435_761 % 4_294_967_296 >> 7) % parallelism


def virtual_keys(parallelism: int, groups: int, candidates: int = CANDIDATES) -> list[int]:
    """For each subtask a key that the engine sends to it: any will do, so the last of the candidates.

    Raises:
        ValueError: none of the candidates is sent to a subtask.
    """
    keys: dict[int, int] = {}
    numbers = pa.record_batch({"virtual": pa.array(range(parallelism * candidates), pa.int64())})
    for number, group in enumerate(key_groups(numbers, ["virtual"], groups).tolist()):
        keys[key_group_owner(group, groups, parallelism)] = number
    for subtask in range(parallelism):
        if subtask not in keys:
            raise ValueError(f"no virtual key for subtask {subtask} among {parallelism * candidates} candidates")
    return [keys[subtask] for subtask in range(parallelism)]


class VirtualKeySelector:
    """Adds the column `virtual`: the virtual key of the subtask that the row's key is routed to."""

    def __init__(self, parallelism: int, groups: int) -> None:
        self._keys = np.array(virtual_keys(parallelism, groups))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        subtasks = route(batch["key"].to_numpy(), len(self._keys))
        return batch.append_column("virtual", pa.array(self._keys[subtasks], pa.int64()))


class VirtualBatches(weir.KeyedProcessFunction):
    """Emits the rows of a virtual key when there are `max_rows`, or when the first has waited."""

    def __init__(self, watch: Watch, max_rows: int, max_wait_ms: int) -> None:
        self._watch, self._max_rows, self._max_wait_ms = watch, max_rows, max_wait_ms

    def open(self, context: weir.ProcessContext) -> None:
        self._rows = context.list_state("rows")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._watch.on_row(row["value"])
        self._rows.add([row["key"], row["value"]])
        rows = self._rows.get()
        if len(rows) == 1:
            context.register_processing_timer(context.now_ms() + self._max_wait_ms)
        if len(rows) >= self._max_rows:
            self._leave(rows, out)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._leave(self._rows.get(), out)

    def _leave(self, rows: list[list[int]], out: weir.RowCollector) -> None:
        self._rows.clear()
        for key, value in rows:
            out.emit({"key": key, "value": value})


# ---------------------------------------------------------------- method 2


def deal(batch: pa.RecordBatch, targets: int) -> npt.NDArray[np.int64]:
    """The author's routing, for rows and for restored state alike."""
    return route(batch["key"].to_numpy(), targets)


class ListBatches(weir.ProcessFunction):
    """Rows wait in a union list. Only a row makes them leave: without a key, the article has no timer and no output."""

    def __init__(self, watch: Watch, max_rows: int, max_wait_ms: int) -> None:
        self._watch, self._max_rows, self._max_wait_ms = watch, max_rows, max_wait_ms

    def open(self, context: weir.SubtaskContext) -> None:
        self._stored = context.union_list_state("rows")
        everything = self._stored.get()
        homes = deal(pa.RecordBatch.from_pylist(everything, SCHEMA), context.parallelism)
        self._rows = [row for row, home in zip(everything, homes, strict=True) if home == context.index]
        self._since_ms = context.now_ms()

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._watch.on_row(row["value"])
        self._rows.append(row)
        if len(self._rows) >= self._max_rows or context.now_ms() >= self._since_ms + self._max_wait_ms:
            leaving, self._rows, self._since_ms = self._rows, [], context.now_ms()
            for each in leaving:
                out.emit(each)

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace(self._rows)


# ---------------------------------------------------------------- method 3


class EmptiedInSnapshot(weir.spi.Operator):
    """Empties its buffer in the snapshot: its rows follow the barrier, and no state has them.

    The runtime refuses output in `snapshot`. So the rows leave at the next call of the host, which follows at once:
    what the engine of the article does with rows of the snapshot step.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._rows: list[pa.RecordBatch] = []
        self._leaving: list[pa.RecordBatch] = []

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        self._leave(out)
        self._rows.append(batch)
        self._watch.on_row(batch.num_rows)

    def snapshot(self, checkpoint: int) -> None:
        self._leaving, self._rows = self._leaving + self._rows, []

    def next_processing_timer(self) -> int | None:
        return 0 if self._leaving else None

    def on_processing_time(self, now_ms: int, out: weir.spi.Collector) -> None:
        self._leave(out)

    def finish(self, out: weir.spi.Collector) -> None:
        self._leave(out)
        for batch in self._rows:
            out.emit(batch)

    def _leave(self, out: weir.spi.Collector) -> None:
        leaving, self._leaving = self._leaving, []
        for batch in leaving:
            out.emit(batch)
