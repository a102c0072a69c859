"""The latest row of each key: a row is forwarded unless its key has had a row with a later time.

The output are updates: a row replaces the former row of its key (Flink SQL: deduplication that keeps the last row by
event time, without retractions). Of the rows of a key in a batch only the latest is forwarded. Of rows with equal times
the last one counts. The state has a time per key and is never freed.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.operators.aggregates import AggregateSet, Max
from runtime.operators.event_time import time_column
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import OPEN_TYPE

_NEWEST: Final = "time"


class Latest(Operator):
    """Forwards the latest row of each key, in the order of the input.

    Args:
        keys: key columns.
        time: column of times.
    """

    def __init__(self, keys: Sequence[str], time: str) -> None:
        self._keys, self._time = tuple(keys), time
        self._newest = AggregateSet({_NEWEST: Max(time)})
        self._state_column = self._newest.fields().names[0]

    def open(self, context: OperatorContext) -> None:
        keys = pa.schema([pa.field(key, OPEN_TYPE) for key in self._keys])
        self._table: KeyedTable = context.state.keyed_table("latest", keys, self._newest.fields())

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if not batch.num_rows:
            return
        times = time_column(batch, self._time)
        columns = [batch.column(key) for key in self._keys]
        self._table.bind_types([column.type for column in columns], self._newest.state_types(batch.schema))
        row_ids = self._table.upsert(columns)
        self._newest.accumulate(self._table, batch, row_ids)
        newest = self._table.value_column(self._state_column, row_ids)
        candidates = np.flatnonzero(pc.equal(times, newest))
        if not len(candidates):
            return
        backwards = candidates[::-1]
        rows = np.sort(backwards[self._table.first_rows(row_ids[backwards])])
        self._table.touch(row_ids[rows])
        out.emit(batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)))
