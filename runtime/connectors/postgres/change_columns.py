"""The columns of a changelog: those of the table at the first start, to which each description in the log must fit."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from runtime.connectors.postgres import pgoutput
from runtime.connectors.postgres.pgoutput import UNCHANGED, Row
from runtime.connectors.postgres.values import Column, from_text
from runtime.errors import DataRejected, JobRejected
from runtime.operators.retraction import OP_COLUMN


def choose_columns(
    table: str, table_columns: Sequence[Column], names: Sequence[str], commit_time: str | None
) -> tuple[Column, ...]:
    """The columns `names` of a table; no names: all columns.

    Raises:
        JobRejected: the table lacks a column, or a column has the name of a column that the stream adds.
    """
    by_name = {column.name: column for column in table_columns}
    for name in names:
        if name not in by_name:
            alternatives = ", ".join(by_name)
            raise JobRejected("unknown-column", name, f"the table {table} has no such column, only {alternatives}")
    columns = tuple(by_name[name] for name in names) or tuple(table_columns)
    for added_name in (OP_COLUMN, commit_time):
        if added_name is not None and added_name in {column.name for column in columns}:
            advice = f"the stream has a column of its own of that name: leave {added_name!r} out of `columns`"
            raise JobRejected("duplicate-column", added_name, advice)
    return columns


class ChangeColumns:
    """The columns of `table` that the stream emits, before the columns that it adds.

    Args:
        are_named: the author has named them. Otherwise a column that is added to the table ends the job.
        commit_time: name of a further column with the time of the commit.

    Raises:
        JobRejected: Arrow has no type for a column.
    """

    def __init__(self, table: str, columns: Sequence[Column], *, are_named: bool, commit_time: str | None) -> None:
        self.columns = tuple(columns)
        self._table, self._are_named, self._commit_time = table, are_named, commit_time
        self._own = [pa.field(column.name, column.arrow) for column in self.columns]
        added = [pa.field(commit_time, pa.timestamp("us", "UTC"))] if commit_time else []
        self._schema = pa.schema([*self._own, *added, pa.field(OP_COLUMN, pa.string())])

    def check_present(self, columns: Mapping[str, Column | pgoutput.RelationColumn]) -> None:
        """Raises JobRejected if `columns`, those of the table by name, lack a column or have it in another type."""
        for column in self.columns:
            present = columns.get(column.name)
            if present is None or (present.type, present.modifier) != (column.type, column.modifier):
                change = "is gone" if present is None else "has another type"
                detail = f"the column {change} since the job began: begin anew with another slot, or name `columns`"
                raise JobRejected("column-changed", column.name, f"table {self._table}: {detail}")

    def places(self, relation: pgoutput.Relation) -> tuple[int, ...]:
        """The place of each column in rows of the relation.

        Raises:
            JobRejected: a column of the stream is gone or has another type, or the table has a new column.
        """
        self.check_present({column.name: column for column in relation.columns})
        places = {column.name: place for place, column in enumerate(relation.columns)}
        new = [name for name in places if name not in {column.name for column in self.columns}]
        if new and not self._are_named:
            detail = f"the table {self._table} has a new column: name the columns to read in `columns`"
            raise JobRejected("new-column", new[0], detail)
        return tuple(places[column.name] for column in self.columns)

    def batch(self, kinds: Sequence[str], rows: Sequence[Row], times: Sequence[int]) -> pa.RecordBatch:
        """The rows as Arrow; `times` of their commits in us.

        Raises:
            DataRejected: an update lacks an unchanged large value, or a value cannot be read.
        """
        arrays = []
        for place, field in enumerate(self._own):
            values = [row[place] for row in rows]
            if UNCHANGED in values:
                detail = f"an update does not contain the unchanged large value of column {field.name!r}"
                remedy = f"ALTER TABLE {self._table} REPLICA IDENTITY FULL, or leave the column out of `columns`"
                raise DataRejected(f"Postgres: table {self._table}: {detail}: {remedy}")
            arrays.append(from_text(field.name, values, field.type))  # type: ignore[arg-type]
        if self._commit_time:
            arrays.append(pa.array(times, pa.timestamp("us", "UTC")))
        return pa.RecordBatch.from_arrays([*arrays, pa.array(kinds, pa.string())], schema=self._schema)
