"""Stateless operators: a function over whole batches, and functions over rows.

`FlatMapRows` and `MapRows` call Python code for each row; `MapBatches` does not.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from runtime.operators.functions.row_values import add_row_note, batch_of, rows_of
from runtime.ports import Collector, Operator

MAX_ROWS_PER_BATCH: Final = 16_384  #: maximum rows per output batch of a flat map


def apply_function(function: Callable[[pa.RecordBatch], pa.RecordBatch], batch: pa.RecordBatch) -> pa.RecordBatch:
    """The result of a batch function. Raises TypeError if the result is not a record batch."""
    result = function(batch)
    if not isinstance(result, pa.RecordBatch):
        raise TypeError(f"a batch function must return a pyarrow.RecordBatch, not {type(result).__name__}")
    return result


class MapBatches(Operator):
    """Applies a function to every batch. An empty result is not forwarded.

    Args:
        function: maps a record batch to a record batch, of the same schema for every input.
    """

    def __init__(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._function = function

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        result = apply_function(self._function, batch)
        if result.num_rows:
            out.emit(result)

    def empty_result(self, schema: pa.Schema) -> pa.RecordBatch:
        """The result for an empty batch of `schema`; it has the output columns, even if no row arrives."""
        return apply_function(self._function, pa.RecordBatch.from_pylist([], schema))


class FlatMapRows(Operator):
    """Applies a row function that returns any number of rows.

    Args:
        function: maps a row (dict) to rows (dicts).
        schema: schema of the output rows; missing columns are null, unknown columns are refused.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Iterable[dict[str, Any]]], schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        rows = self._output_rows(batch)
        while chunk := list(islice(rows, MAX_ROWS_PER_BATCH)):
            out.emit(batch_of(chunk, self._schema))

    def output_columns(self) -> pa.Schema:
        return self._schema

    def _output_rows(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        for row in rows_of(batch):
            try:
                yield from self._function(row)
            except (Exception, SystemExit) as error:
                add_row_note(error, row)
                raise


class MapRows(FlatMapRows):
    """Applies a row function that returns exactly one row.

    Args:
        function: maps a row (dict) to a row (dict).
        schema: schema of the output rows; missing columns are null, unknown columns are refused.
    """

    def __init__(self, function: Callable[[dict[str, Any]], dict[str, Any]], schema: pa.Schema) -> None:
        super().__init__(lambda row: (_checked_row(function(row)),), schema)


def _checked_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        returned = type(row).__name__
        raise TypeError(f"a map must return a row (dict), not {returned}: use filter to drop rows, flat_map for more")
    return row
