"""What every operator owes: the same state and input give the same output, also from a snapshot half-way."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.messages import MAX_WATERMARK
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Count, Max, Mean, Min, Sum
from runtime.operators.functions.batch import FlatMapRows, MapBatches
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcess, KeyedProcessFunction, ProcessContext
from runtime.operators.functions.micro_batches import Batches, BatchLimits
from runtime.operators.functions.process import Process, ProcessFunction, SubtaskContext
from runtime.operators.latest import Latest as LatestRows
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.deduplicate import Deduplicate
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.ports import Operator
from tests.operators.combined import Combined
from tests.operators.harness import Harness

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])
BATCHES = [
    pa.RecordBatch.from_pylist(
        [{"k": f"key {(3 * row) % 5}", "v": row * number, "at": 100 * number + row} for row in range(20)], schema=SCHEMA
    )
    for number in range(6)
]


class Latest(KeyedProcessFunction):
    """Passes each row on with the one before it of its key; tells of the last by a timer."""

    def open(self, context: ProcessContext) -> None:
        self._last = context.value_state("last")

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        out.emit({"k": row["k"], "v": self._last.get(-1)})
        self._last.update(row["v"])
        context.register_event_timer(row["at"] + 150)

    def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
        out.emit({"k": context.current_key, "v": self._last.get(), "at": timestamp_ms})


class Running(ProcessFunction):
    """Numbers the rows."""

    def open(self, context: SubtaskContext) -> None:
        self._stored = context.list_state("rows")
        self._rows = sum(self._stored.get())

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        self._rows += 1
        out.emit({**row, "v": self._rows})

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace([self._rows])


def combiner() -> WindowPreAggregator:
    return WindowPreAggregator(["k"], "at", 50, AGGREGATES)


AGGREGATES = {"n": Count(), "sum": Sum("v"), "least": Min("v"), "most": Max("v"), "mean": Mean("v")}
OPERATORS: dict[str, Callable[[], Operator]] = {
    "map_batches": lambda: MapBatches(lambda batch: batch.slice(1)),
    "flat_map": lambda: FlatMapRows(lambda row: [row] * (row["v"] % 3), SCHEMA),
    "batches": lambda: Batches(["k"], lambda batch: batch, BatchLimits(17, 1_000)),
    "process": lambda: Process(Running(), SCHEMA),
    "keyed process": lambda: KeyedProcess(Latest(), ["k"], SCHEMA, "at"),
    "aggregate": lambda: RunningAggregate(["k"], AGGREGATES),
    "changelog": lambda: RunningAggregate(["k"], AGGREGATES, changelog=True),
    "latest": lambda: LatestRows(["k"], "at"),
    "deduplicate": lambda: Deduplicate(["k"], 200, "at"),
    "window": lambda: Combined(combiner(), TumblingWindow(["k"], 50, AGGREGATES)),
    "sliding window": lambda: Combined(combiner(), SlidingWindow(["k"], 200, 50, AGGREGATES)),
}


def fed(harness: Harness, batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        harness.process(batch)
        harness.watermark(batch.column("at")[0].as_py())


def end(harness: Harness) -> None:
    harness.watermark(MAX_WATERMARK)
    harness.finish()


@pytest.mark.parametrize("name", OPERATORS)
def test_the_same_input_gives_the_same_output(name: str) -> None:
    """S4-10."""
    outputs = []
    for _ in range(2):
        harness = Harness(OPERATORS[name]())
        fed(harness, BATCHES)
        end(harness)
        outputs.append(harness.out.rows())
    assert outputs[0] == outputs[1] != []


@pytest.mark.parametrize("name", OPERATORS)
def test_state_and_the_rest_of_the_input_give_the_rest_of_the_output(name: str) -> None:
    """S4-10, S3-60: at each place where a barrier may come; what came before it is out or in the state."""
    for cut in range(len(BATCHES) + 1):
        store = MemorySnapshotStore()
        before = Harness(OPERATORS[name](), store=store)
        fed(before, BATCHES[:cut])
        snapshot = before.snapshot("chk-1")
        already = len(before.out.rows())
        after = Harness(OPERATORS[name](), store=store, snapshots=[snapshot], lists=snapshot.lists)
        if cut:
            after.watermark(BATCHES[cut - 1].column("at")[0].as_py())
        for harness in (before, after):
            fed(harness, BATCHES[cut:])
            end(harness)
        assert _sorted(after.out.rows()) == _sorted(before.out.rows()[already:])


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))
