"""Functions with two keyed streams against a loop over records: state and timers that both hooks share; rescaled."""

from collections import Counter as Multiset
from typing import Any

import pyarrow as pa
from hypothesis import given, settings

import weir
from runtime.operators.functions.keyed_process import KeyedInput, KeyedProcess
from tests.example_counts import examples
from tests.operators.joins.subtasks import KEYS, STEPS, Event, run

OUT = pa.schema([("key", pa.string()), ("cause", pa.string()), ("left", pa.int64()), ("right", pa.int64())])
WAIT_MS = 5


class Sums(weir.KeyedCoProcessFunction):
    """The sums of both streams per key, with each row and each timer; a timer clears them."""

    def open(self, context: weir.ProcessContext) -> None:
        self.sums = context.map_state("sums")

    def process1(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._add("left", row["v"], context, out)

    def process2(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._add("right", row["w"], context, out)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._emit(f"timer {timestamp_ms}", context, out)
        self.sums.clear()

    def _add(self, side: str, value: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        assert context.timestamp is not None
        self.sums[side] = self.sums.get(side, 0) + value
        context.register_event_timer(context.timestamp + WAIT_MS)
        self._emit(side, context, out)

    def _emit(self, cause: str, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        sums = {side: self.sums.get(side, 0) for side in ("left", "right")}
        out.emit({"key": context.current_key, "cause": cause, **sums})


class SumsOracle:
    def __init__(self) -> None:
        self.sums = {key: [0, 0] for key in KEYS}
        self.timers: dict[str | None, set[int]] = {key: set() for key in KEYS}
        self.rows: Multiset[Any] = Multiset()

    def process(self, input: int, events: list[Event]) -> None:
        for key, time, value in events:
            self.sums[key][input] += value
            self.timers[key].add(time + WAIT_MS)
            self.rows[key, ("left", "right")[input], *self.sums[key]] += 1

    def advance(self, keys: list[str | None], watermark: int) -> None:
        for key in keys:
            for due in sorted(time for time in self.timers[key] if time <= watermark):
                self.timers[key].remove(due)
                self.rows[key, f"timer {due}", *self.sums[key]] += 1
                self.sums[key] = [0, 0]


@settings(deadline=None, max_examples=examples(100))
@given(STEPS)
def test_both_hooks_share_state_and_timers(steps: list[Any]) -> None:
    """S3-20: batches of both streams, watermarks, snapshots and rescales in any order."""
    oracle = SumsOracle()
    second = KeyedInput(("key",), "at")
    subtasks = run(lambda: KeyedProcess(Sums(), ["k"], OUT, "t", (), second), oracle, steps)
    rows = Multiset(tuple(row.values()) for subtask in subtasks.every for row in subtask.out.rows())
    assert rows == oracle.rows
