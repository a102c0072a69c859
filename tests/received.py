"""Batches as a slot receives them: all columns are parts of one buffer."""

import pyarrow as pa


def received(batch: pa.RecordBatch) -> pa.RecordBatch:
    data = batch.serialize()
    body = pa.allocate_buffer(data.size)
    memoryview(body)[:] = data
    return pa.ipc.read_record_batch(body, batch.schema)


def wide(rows: int = 20_000, columns: int = 20) -> pa.RecordBatch:
    """A received batch of many columns; the first is `k`."""
    numbers = pa.array(range(rows), pa.int64())
    return received(pa.record_batch(dict.fromkeys(("k", *(f"v{n}" for n in range(1, columns))), numbers)))
