"""Steps by Arrow expressions (`pyarrow.compute.Expression`): filters and projections, without Python code per row.

    import pyarrow.compute as pc

    rides.filter("paid", pc.field("fare") > 0)
    rides.with_columns("euros", euros=pc.field("fare") * 0.92)

Acero, Arrow's execution engine, evaluates the expressions on the thread of the subtask. A batch costs about 0.1 ms more
than a direct call of the kernel.
"""

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import DataRejected, JobRejected
from runtime.ports import Collector, Operator
from runtime.state.encoded_texts import ByDictionary, decode, encoded_columns, has_few_values

_CONSTANT_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_UNKNOWN_FIELD: Final = re.compile(r"No match for FieldRef\.(?:Nested\(FieldRef\.)?Name\((?P<name>[^)]*)\)")


def columns_named_in(expression: pc.Expression | None, names: Iterable[str]) -> list[str]:
    """The columns of `names` that an expression may read: their names occur in its text, perhaps by chance."""
    text = "" if expression is None else str(expression)
    if "FieldPath(" in text:  # a column by its number
        return list(names)
    return [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) or not name.isidentifier()]


def names_column(expression: pc.Expression, name: str) -> bool:
    """Whether an expression reads the column `name`. Its constant texts are no columns."""
    return bool(re.search(rf"(?<![^\s(,]){re.escape(name)}(?![^\s),])", _CONSTANT_TEXT.sub("", str(expression))))


def filter_mask(predicate: pc.Expression, batch: pa.RecordBatch) -> pa.Array:
    """Whether `predicate` is true, by row; null counts as false in a filter.

    Raises:
        JobRejected: the predicate names an unknown column, or is not of type bool.
        DataRejected: a value cannot be computed.
    """
    if encoded_columns(batch.schema):
        batch = decode(batch, columns_named_in(predicate, batch.schema.names))
    (mask,) = _evaluate(batch, {"filter": predicate}).columns
    if not pa.types.is_boolean(mask.type):
        detail = f"a filter must be true or false, but {predicate} is {mask.type}"
        raise JobRejected("bad-expression", "filter", detail)
    return mask


class Filter(Operator):
    """Forwards the rows for which the expression is true. Null counts as false, as in SQL.

    An expression on a single dictionary-encoded column is evaluated once per dictionary value.

    Args:
        predicate: an expression of type bool.
    """

    def __init__(self, predicate: pc.Expression) -> None:
        self._predicate = predicate
        self._by_dictionary: dict[str, ByDictionary] = {}  #: by column

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        mask = self._mask_by_dictionary(batch)
        rows = batch.filter(filter_mask(self._predicate, batch) if mask is None else mask)
        if rows.num_rows:
            out.emit(rows)

    def _mask_by_dictionary(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The mask of a predicate on a single encoded column; None: the rows decide.

        A dictionary may hold a value that no row has, and for which the predicate cannot be computed.
        """
        encoded = encoded_columns(batch.schema)
        names = columns_named_in(self._predicate, batch.schema.names) if encoded else []
        if len(names) != 1 or names[0] not in encoded or not has_few_values(column := batch.column(names[0])):
            return None
        try:
            return pa.array(self._by_value(names[0]).of_rows(column))
        except (DataRejected, JobRejected):
            return None

    def _by_value(self, name: str) -> ByDictionary:
        if name not in self._by_dictionary:
            self._by_dictionary[name] = ByDictionary(partial(_mask_of_values, self._predicate, name))
        return self._by_dictionary[name]

    def columns_after(self, schema: pa.Schema) -> pa.Schema:
        """The output columns for input columns `schema`. Raises JobRejected: the expression does not fit them."""
        filter_mask(self._predicate, pa.RecordBatch.from_pylist([], schema))
        return schema


def _mask_of_values(predicate: pc.Expression, name: str, values: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether `predicate` is true, by value of the column `name`."""
    mask = filter_mask(predicate, pa.RecordBatch.from_arrays([values], names=[name]))
    return np.asarray(mask.fill_null(False))


class Project(Operator):
    """Computes columns.

    Args:
        columns: an expression by output column.
        keeps_input: the columns of the input come first; a computed column of the same name replaces its column.
    """

    def __init__(self, columns: Mapping[str, pc.Expression], *, keeps_input: bool) -> None:
        self._columns, self._keeps_input = dict(columns), keeps_input
        sources = {name: str(each) for name, each in columns.items()}
        self._sources = sources if all(each.equals(pc.field(sources[name])) for name, each in columns.items()) else {}

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(self._project(batch))

    def columns_after(self, schema: pa.Schema) -> pa.Schema:
        """The output columns for input columns `schema`. Raises JobRejected: an expression does not fit them."""
        return self._project(pa.RecordBatch.from_pylist([], schema)).schema

    def _project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        selected = self._select(batch)
        computed = _evaluate(batch, self._columns) if selected is None else selected
        if not self._keeps_input:
            return computed
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= dict(zip(computed.schema.names, computed.columns, strict=True))
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The columns by name, if all expressions are names of columns; None: they must be evaluated."""
        if not self._sources or not set(self._sources.values()) <= set(batch.schema.names):
            return None
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in self._sources.values()], names=list(self._sources)
        )


def _evaluate(batch: pa.RecordBatch, columns: Mapping[str, pc.Expression]) -> pa.RecordBatch:
    """A column per expression.

    Raises:
        JobRejected: an expression names an unknown column, or its function does not take the types of its columns.
        DataRejected: a value cannot be computed, for example a number from a text.
    """
    from pyarrow import acero  # imports pandas and numpy.random, which a process that forks slots must not have

    rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    options = acero.ProjectNodeOptions(list(columns.values()), list(columns))
    try:
        table = acero.Declaration("project", options, [rows]).to_table(use_threads=False)
    except pa.ArrowException as error:
        raise _named(error, batch, columns) from error
    return table.to_batches()[0] if table.column(0).num_chunks == 1 else _as_batch(table)


def _as_batch(table: pa.Table) -> pa.RecordBatch:
    """A single batch: Acero splits large batches, and returns none for an empty one."""
    combined = table.combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], table.schema)


def _named(error: Exception, batch: pa.RecordBatch, columns: Mapping[str, pc.Expression]) -> Exception:
    """The error with the name of the column at fault, and the expressions."""
    unknown = _UNKNOWN_FIELD.search(str(error))
    if unknown is not None:
        names = ", ".join(batch.schema.names)
        detail = f"the expression names the column {unknown['name']!r}; the columns are {names}"
        return JobRejected("unknown-column", unknown["name"], detail)
    texts = ", ".join(f"{name}: {expression}" for name, expression in columns.items())
    if isinstance(error, pa.ArrowNotImplementedError | pa.ArrowTypeError):
        return JobRejected("bad-expression", next(iter(columns)), f"{texts}: {error}")
    return DataRejected(f"a value cannot be computed ({texts}): {error}")
