"""A window behind its combiner, as on one edge: rows in, windows out."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from runtime.operators.windows.pre_aggregation import PreAggregator
from runtime.ports import Collector, Operator, OperatorContext


class Combined(Operator):
    """What a host does with a combiner: what it holds goes ahead of everything but rows."""

    def __init__(self, combiner: PreAggregator, window: Operator) -> None:
        self.combiner = combiner
        self.window = window

    def open(self, context: OperatorContext) -> None:
        self.window.open(context)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._deal(self.combiner.add(batch), out)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._deal(self.combiner.advance(watermark), out)
        self.window.on_watermark(watermark, out)

    def open_results(self) -> Mapping[str, int]:
        return self.window.open_results()

    def snapshot(self, checkpoint: int) -> None:
        self._deal(self.combiner.flush(), Silent())
        self.window.snapshot(checkpoint)

    def finish(self, out: Collector) -> None:
        self._deal(self.combiner.flush(), out)
        self.window.finish(out)

    def _deal(self, parts: list[pa.RecordBatch], out: Collector) -> None:
        for part in parts:
            self.window.process(0, part, out)


class Silent:
    """Before a barrier a window takes in what comes, and says nothing."""

    def emit(self, batch: Any) -> None:
        raise AssertionError("a window spoke without a watermark")

    def emit_to(self, output: str, batch: Any) -> None:
        raise AssertionError(f"a window spoke to {output}")
