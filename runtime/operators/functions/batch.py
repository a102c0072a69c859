"""Stateless steps: a function over whole batches, and a function over rows.

The row function is the one place of the data plane that touches single records in Python.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from runtime.operators.functions.row_values import batch_of, note_row, rows_of
from runtime.ports import Collector, Operator

ROWS_PER_BATCH: Final = 16_384  #: most rows that a flat map puts into one output batch


def applied(function: Callable[[pa.RecordBatch], pa.RecordBatch], batch: pa.RecordBatch) -> pa.RecordBatch:
    """What a batch function gives.

    Raises:
        TypeError: it is no record batch.
    """
    result = function(batch)
    if not isinstance(result, pa.RecordBatch):
        raise TypeError(f"a batch function must return a pyarrow.RecordBatch, not {type(result).__name__}")
    return result


class MapBatches(Operator):
    """Applies a function to every batch. An empty result is not sent.

    Args:
        function: gets a record batch, returns one (of one schema for every input).
    """

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._function = function

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        result = applied(self._function, batch)
        if result.num_rows:
            out.emit(result)

    def of_no_rows(self, schema: pa.Schema) -> pa.RecordBatch:
        """What the function makes of an empty batch: columns, where no row shows them."""
        return applied(self._function, pa.RecordBatch.from_pylist([], schema))


class FlatMapRows(Operator):
    """Applies a row function that gives any number of rows.

    Args:
        function: gets a row as a dict, returns rows as dicts.
        schema: of the rows that come out; columns that a row lacks are null, others are refused.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Iterable[dict[str, Any]]], schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        rows = self._made(batch)
        while chunk := list(islice(rows, ROWS_PER_BATCH)):
            out.emit(batch_of(chunk, self._schema))

    def output_columns(self) -> pa.Schema:
        return self._schema

    def _made(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        for row in rows_of(batch):
            try:
                yield from self._function(row)
            except (Exception, SystemExit) as error:
                note_row(error, row)
                raise
