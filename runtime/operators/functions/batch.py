"""Stateless operators: a function over whole batches, and functions over rows.

`FlatMapRows` and `MapRows` call Python code for each row; `MapBatches` does not.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Final

import pyarrow as pa

from runtime.operators.functions.row_values import add_row_note, batch_of, rows_of
from runtime.operators.functions.set_aside import SetAsideRows, concerns_row
from runtime.ports import Collector, Operator, OperatorContext

Results = list[tuple[int, list[dict[str, Any]]]]  #: number of an input row, and its output rows

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
        letters: receives the rows for which the function raises; None: an error fails the operator.
    """

    def __init__(
        self,
        function: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
        schema: pa.Schema,
        letters: SetAsideRows | None = None,
    ) -> None:
        self._function = function
        self._schema = schema
        self._letters = letters

    def open(self, context: OperatorContext) -> None:
        if self._letters is not None:
            self._letters.open(context)

    def snapshot(self, checkpoint: int) -> None:
        if self._letters is not None:
            self._letters.snapshot()

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if self._letters is not None:
            self._process_or_set_aside(batch, self._letters, out)
            return
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

    def _process_or_set_aside(self, batch: pa.RecordBatch, letters: SetAsideRows, out: Collector) -> None:
        results: Results = []
        count = 0
        for number, values in enumerate(_values_of(batch)):
            try:
                rows = list(self._function(next(rows_of(batch.slice(number, 1))) if values is None else values))
            except Exception as error:
                if not concerns_row(error):
                    raise
                letters.add(batch.slice(number, 1), error)
                continue
            results.append((number, rows))
            count += len(rows)
            if count >= MAX_ROWS_PER_BATCH:
                self._emit_results(batch, results, letters, out)
                results, count = [], 0
        self._emit_results(batch, results, letters, out)

    def _emit_results(self, batch: pa.RecordBatch, results: Results, letters: SetAsideRows, out: Collector) -> None:
        """Emits output rows, and sets those input rows aside whose output does not fit the schema."""
        rows = [row for _, each in results for row in each]
        try:
            fitting = [batch_of(rows, self._schema)] if rows else []
        except Exception:  # noqa: BLE001 - raised again below, for its row
            fitting = []
            for number, each in results:
                try:
                    fitting.append(batch_of(each, self._schema))
                except Exception as error:
                    if not concerns_row(error):
                        raise
                    letters.add(batch.slice(number, 1), error)
        if fitting:
            result = pa.concat_batches(fitting)
            for start in range(0, result.num_rows, MAX_ROWS_PER_BATCH):
                out.emit(result.slice(start, MAX_ROWS_PER_BATCH))
        letters.flush(out)


class MapRows(FlatMapRows):
    """Applies a row function that returns exactly one row.

    Args:
        function: maps a row (dict) to a row (dict).
        schema: schema of the output rows; missing columns are null, unknown columns are refused.
    """

    def __init__(
        self,
        function: Callable[[dict[str, Any]], dict[str, Any]],
        schema: pa.Schema,
        letters: SetAsideRows | None = None,
    ) -> None:
        super().__init__(lambda row: (_checked_row(function(row)),), schema, letters)


def _values_of(batch: pa.RecordBatch) -> Iterable[dict[str, Any] | None]:
    """The values of each row; None for all rows if some row has none in Python, as for text that is no UTF-8."""
    try:
        return rows_of(batch)
    except Exception:  # noqa: BLE001 - raised again for its row
        return repeat(None, batch.num_rows)


def _checked_row(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        returned = type(row).__name__
        raise TypeError(f"a map must return a row (dict), not {returned}: use filter to drop rows, flat_map for more")
    return row
