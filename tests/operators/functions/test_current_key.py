"""What belongs to the current key of a row or a timer, and the refusal of it where there is none."""

from collections.abc import Callable
from typing import Any

import pytest

from runtime.errors import WeirError
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from tests.operators.functions.test_keyed_process import Alarms, batch, operator
from tests.operators.harness import Harness


def test_a_column_that_cannot_be_made_is_named() -> None:
    class Wrong(KeyedProcessFunction):
        def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
            out.emit({"k": "a", "v": "many"})

    with pytest.raises(TypeError, match="column 'v' of the output rows is int64: Could not convert 'many'"):
        Harness(operator(Wrong())).process(batch([("a", 1)]))


def test_state_and_keys_are_those_of_the_timer_that_fires_whichever_fired_before() -> None:
    """Many timers fire at once: each key's own state is seen, also when a key comes twice or for the first time."""

    class Turns(Alarms):
        def open(self, context: ProcessContext) -> None:
            super().open(context)
            self._turns = context.reducing_state("turns", lambda total, other: total + other)

        def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
            super().on_timer(timestamp_ms, context, out)
            self._turns.add(timestamp_ms)
            out.emit({"k": context.current_key, "v": self._turns.get(), "text": "sum"})

    harness = Harness(operator(Turns()))
    harness.process(batch([("b", 2), ("a", 1), ("a", 3), ("c", 4), ("b", 5)]))
    sums = [(row["k"], row["v"]) for row in harness.watermark(4) if row["text"] == "sum"]
    assert sums == [("a", 1), ("b", 2), ("a", 4), ("c", 4)]
    assert [row["v"] for row in harness.watermark(5) if row["text"] == "sum"] == [7]


def test_keyed_state_is_refused_between_rows() -> None:
    """S1-15: also by a function that has had a key before, for reading and for writing."""

    class Late(KeyedProcessFunction):
        def open(self, context: ProcessContext) -> None:
            self.value, self.folded = context.value_state("value"), context.reducing_state("folded", max)
            self.context = context

        def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
            self.value.update(row["v"])
            self.folded.add(row["v"])

    late = Late()
    harness = Harness(operator(late))
    harness.process(batch([("a", 1)]))
    calls: list[Callable[[], Any]] = [
        late.value.get, lambda: late.value.update(1), late.value.clear, lambda: late.value.update([1]), late.folded.get,
        lambda: late.folded.add(1), lambda: late.context.current_key, lambda: late.context.register_event_timer(1),
    ]  # fmt: skip
    for use in calls:
        with pytest.raises(WeirError, match="no current key"):
            use()
    assert harness.snapshot("chk-1").keyed["value"][0].rows == 1


def test_a_function_sees_the_watermark_and_may_drop_late_rows() -> None:
    class OnTime(KeyedProcessFunction):
        def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
            out.emit({"k": row["k"], "v": -1 if context.watermark is None else context.watermark})

        def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
            """No timer is registered."""

    harness = Harness(operator(OnTime()))
    outputs = [harness.process(batch([("a", 1)]))]
    harness.watermark(7)
    outputs.append(harness.process(batch([("a", 2)])))
    assert [row["v"] for rows in outputs for row in rows] == [-1, 7]
