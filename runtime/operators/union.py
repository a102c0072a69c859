"""The union of streams with the same columns: each has an input of its own (Flink: `DataStream.union`).

Event time is the minimum of the inputs, and the union finishes when all its inputs have ended.
"""

import pyarrow as pa

from runtime.ports import Collector, Operator


class Union(Operator):
    """Forwards all inputs. The collector refuses batches whose columns differ from earlier batches."""

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)
