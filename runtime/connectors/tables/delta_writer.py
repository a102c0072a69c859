"""The writer of a Delta sink: Parquet files in the table's folder, without the partition columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from runtime.connectors.tables.data_folder import data_folder_at
from runtime.connectors.tables.delta_table import check_columns, delta_schema, load_table, required_columns
from runtime.connectors.tables.table_writer import TableWriter, check_required, split
from runtime.errors import DataRejected, JobRejected
from runtime.ports import OperatorContext


class DeltaWriter(TableWriter):
    """Writes a file per checkpoint and partition."""

    def __init__(self, path: str, partition_by: Sequence[str]) -> None:
        super().__init__()
        self.folder, self._partition_by = data_folder_at("path", path), tuple(partition_by)
        self._path = self.folder.location
        self._columns = ""  #: columns as Delta's JSON
        self._arrow: pa.Schema | None = None  #: columns as Delta's Arrow types
        self._required: Sequence[str] = ()  #: columns of the table that must not be null

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.folder.check()
        self.folder.make()

    def adopt(self, schema: pa.Schema) -> None:
        columns, arrow = delta_schema(schema)
        check_partition_columns(arrow, self._partition_by)
        if self._columns and columns != self._columns:
            problem = f"the columns have changed from {self._columns} to {columns}: restart the job"
            raise JobRejected("schema-mismatch", "path", f"{self._path}: {problem}")
        self.folder.check()
        table = load_table(self._path)
        if table is not None:
            check_columns(self._path, table, columns, self._partition_by)
            self._required = required_columns(table)
        self._columns, self._arrow = columns, arrow

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        check_required(self._path, batch, self._required)
        try:
            return batch.cast(self._arrow)
        except pa.ArrowInvalid as error:
            raise DataRejected(f"{self._path}: a value does not fit its column of the Delta table: {error}") from error

    def partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        names = list(self._partition_by)
        for values, rows in split(batch, [batch.column(name) for name in names]):
            yield tuple(_partition_value(value) for value in values), rows.drop_columns(names)

    def partition_json(self, values: tuple[str | None, ...]) -> Mapping[str, str | None]:
        return dict(zip(self._partition_by, values, strict=True))

    def table_json(self) -> Mapping[str, Any]:
        return {"columns": self._columns}


def check_partition_columns(columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises JobRejected unless rows of `columns` can be partitioned by the columns `partition_by`."""
    for name in partition_by:
        if name not in columns.names:
            raise JobRejected("no-column", "partition_by", f"the stream has no column {name}; it has {columns.names}")
        kind = columns.field(name).type
        types = pa.types
        if not any(check(kind) for check in (types.is_string, types.is_integer, types.is_boolean, types.is_date32)):
            problem = f"column {name} is {kind}; partitions are by text, integers, booleans and dates"
            raise JobRejected("bad-partition", "partition_by", problem)
    if len(partition_by) == len(columns):
        raise JobRejected("bad-partition", "partition_by", "must leave a column for the files")


def _partition_value(value: Any) -> str | None:
    """The value as Delta's log spells it (protocol, "Partition Value Serialization"): empty text is null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None or value == "" else str(value)
