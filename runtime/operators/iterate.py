"""The head of a loop: forwards rows from outside and from the back-edges unchanged.

The head has no state: the subtask logs the rows in flight on back-edges at a barrier.
"""

import pyarrow as pa

from runtime.ports import Collector, Operator


class Iterate(Operator):
    """Forwards all inputs. They must have the same columns: the collector refuses a difference and names the head."""

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)
