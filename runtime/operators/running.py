"""Aggregates over all records so far, per key; each batch emits the new values of the keys that it touched."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.factorise import factorise
from runtime.state.schema import UNSETTLED
from runtime.state.table import KeyedTable


class RunningAggregate(Operator):
    """Emits the keys, then one column per aggregate, sorted by key within a batch.

    Args:
        keys: key columns.
        aggregates: by output column.
    """

    def __init__(self, keys: Sequence[str], aggregates: Mapping[str, Aggregate]) -> None:
        self._keys = tuple(keys)
        self._aggregates = AggregateSet(aggregates)
        self._names = [*self._keys, *self._aggregates.names]
        if len(set(self._names)) != len(self._names):
            raise JobRejected("duplicate-column", ", ".join(self._keys), f"output columns must differ: {self._names}")

    def open(self, context: OperatorContext) -> None:
        keys = pa.schema([pa.field(key, UNSETTLED) for key in self._keys])
        self._table: KeyedTable = context.state.keyed_table("aggregates", keys, self._aggregates.fields())

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if not batch.num_rows:
            return
        kinds = [batch.schema.field(key).type for key in self._keys]
        self._table.settle(kinds, self._aggregates.kinds(batch.schema))
        keys = [batch.column(key) for key in self._keys]
        distinct = factorise(keys)
        first = pa.array(distinct.first)
        slots = self._table.upsert([key.take(first) for key in keys])
        self._aggregates.fold(self._table, batch, distinct, slots)
        columns = [
            *(self._table.key_column(key, slots) for key in self._keys),
            *self._aggregates.results(self._table, slots),
        ]
        changed = pa.RecordBatch.from_arrays(columns, names=self._names)
        out.emit(changed.take(pc.sort_indices(changed, sort_keys=[(key, "ascending") for key in self._keys])))
