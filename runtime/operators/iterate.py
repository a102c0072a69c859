"""The head of a loop: passes on what comes from outside and what comes round, unchanged.

It has no state: what was on its way round at a barrier is logged by whoever runs it.
"""

import pyarrow as pa

from runtime.ports import Collector, Operator


class Iterate(Operator):
    """Both kinds of input must have the same columns; the collector refuses what differs, by the head's name."""

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)
