"""The memory that a batch keeps alive: its columns may be small parts of large buffers.

A batch that a slot receives is a single buffer, and a file is read in large chunks. A column or slice of it keeps all
of it alive. That is free while a batch passes. Rows that are held for long, such as those of a sink before its next
write, would keep many times their size alive. Held rows are therefore copied if they are a small part of their memory.
"""

from typing import Final

import pyarrow as pa

MAX_MEMORY_RATIO: Final = 2  #: memory that held rows may keep alive, in multiples of their size
ALWAYS_KEPT_BYTES: Final = 1 << 16  #: rows that keep at most this size alive are not copied


def with_own_memory(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, copied if it keeps much more memory alive than its own. Call it for rows that are held for long."""
    memory = memory_kept_alive(batch)
    if memory <= ALWAYS_KEPT_BYTES or memory <= MAX_MEMORY_RATIO * batch.nbytes:
        return batch
    return pa.RecordBatch.from_arrays([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)


def memory_kept_alive(batch: pa.RecordBatch) -> int:
    """Bytes of the allocations of which the columns are parts. Dictionaries, which batches share, do not count."""
    allocations = {}
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                allocation = _allocation(buffer)
                allocations[allocation.address] = allocation.size
    return sum(allocations.values())


def _allocation(buffer: pa.Buffer) -> pa.Buffer:
    while (parent := buffer.parent) is not None:
        buffer = parent
    return buffer
