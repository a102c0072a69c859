"""The writer of a Delta sink: Parquet files in the table's folder, which no reader sees before the commit.

    part-<job>-<token>-<uid>-<subtask>-<random>-<number>-<n>.parquet

`number` counts the checkpoints with rows of this writer. All files of a number are committed together. The random part
distinguishes writers of runs that have the same names and tokens, such as two runs of `run_local`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runtime.connectors.names import encode_name
from runtime.connectors.sinks.parquet_file import ROW_GROUP_BYTES, dictionary_columns
from runtime.connectors.tables.delta_table import check_columns, delta_schema, load_table
from runtime.data_roots import CheckedFolder, DataRoots
from runtime.durable import make_folder, name_write_errors, sync_path
from runtime.errors import DataRejected, JobRejected
from runtime.ports import OperatorContext, SinkWriter

OWNER: Final = re.compile(r"(?P<job>[A-Za-z0-9_.]+)-(?P<token>\d+)-(?P<uid>[A-Za-z0-9_.]+)-\d+-[0-9a-f]{8}")
FILE_NAME: Final = re.compile(rf"part-(?P<owner>{OWNER.pattern})-(?P<number>\d+)-\d+\.parquet")
MAX_OPEN_FILES: Final = 100  #: partitions that are written at the same time


def encode_part(part: str) -> str:
    """The name of a job or operator within a file name, encoded injectively by letters, digits, `_` and `.`.

    `encode_name` uses `~`. The log escapes that character, and DataFusion then searches for a file of the escaped name.
    """
    return encode_name(part).replace("_", "~5F").replace("~", "_")


class DeltaWriter(SinkWriter):
    """Writes a file per checkpoint and partition."""

    def __init__(self, folder: Path, partition_by: Sequence[str], roots: DataRoots | None = None) -> None:
        self._folder, self._partition_by = folder, tuple(partition_by)
        self._checked = CheckedFolder.of("path", folder, roots)
        self._number = 1
        self._given: pa.Schema | None = None  #: columns of the batches
        self._columns = ""  #: the same as Delta's JSON
        self._arrow: pa.Schema | None = None  #: the same as Delta's Arrow types
        self._open: dict[tuple[str | None, ...], _PartitionFile] = {}
        self._written: list[dict[str, Any]] = []
        self._waiting_bytes = 0

    def open(self, context: OperatorContext) -> None:
        name = f"{encode_part(context.job)}-{context.token}-{encode_part(context.uid)}-{context.index}"
        self._owner = f"{name}-{uuid4().hex[:8]}"
        self._checked.check()
        make_folder(self._folder)

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if batch.schema != self._given:
            self._adopt(batch.schema)
        try:
            batch = batch.cast(self._arrow)
        except pa.ArrowInvalid as error:
            raise DataRejected(
                f"{self._folder}: a value does not fit its column of the Delta table: {error}"
            ) from error
        for values, rows in split(batch, self._partition_by):
            self._file_of(values).add(rows)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_groups()

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._checked.check()
        self._finish_files()
        if not self._written:
            return ()
        sync_path(self._folder)
        committable = {
            "owner": self._owner,
            "number": self._number,
            "rows": sum(file["rows"] for file in self._written),
            "bytes": sum(file["bytes"] for file in self._written),
            "folder": str(self._folder.absolute()),
            "columns": self._columns,
            "files": self._written,
        }
        self._written = []
        self._number += 1
        return (committable,)

    def close(self) -> None:
        """Deletes the files that belong to no checkpoint. Prepared files stay."""
        for file in self._open.values():
            file.abandon()
        for written in self._written:
            (self._folder / written["path"]).unlink(missing_ok=True)
        self._open, self._written = {}, []

    def _adopt(self, schema: pa.Schema) -> None:
        """Begins files of these columns, once the table is known to accept them."""
        columns, arrow = delta_schema(schema)
        check_partition_columns(arrow, self._partition_by)
        if self._columns and columns != self._columns:
            problem = f"the columns have changed from {self._columns} to {columns}: restart the job"
            raise JobRejected("schema-mismatch", "path", f"{self._folder}: {problem}")
        self._checked.check()
        table = load_table(self._folder)
        if table is not None:
            check_columns(self._folder, table, columns, self._partition_by)
        self._given, self._columns, self._arrow = schema, columns, arrow

    def _file_of(self, values: tuple[str | None, ...]) -> "_PartitionFile":
        if values not in self._open:
            if len(self._open) == MAX_OPEN_FILES:
                self._finish_files()
            name = f"part-{self._owner}-{self._number}-{len(self._written) + len(self._open)}.parquet"
            partition = dict(zip(self._partition_by, values, strict=True))
            self._open[values] = _PartitionFile(self._checked, name, partition)
        return self._open[values]

    def _write_groups(self) -> None:
        for file in self._open.values():
            file.write_group()
        self._waiting_bytes = 0

    def _finish_files(self) -> None:
        for values in list(self._open):
            self._written.append(self._open[values].finish())
            del self._open[values]
        self._waiting_bytes = 0


class _PartitionFile:
    """A Parquet file in progress, without the partition columns."""

    def __init__(self, folder: CheckedFolder, name: str, partition: dict[str, str | None]) -> None:
        self._path, self._partition = folder.path / name, partition
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._parquet: Any = None
        with name_write_errors(self._path):
            self._file = os.fdopen(folder.open_to_write(name, os.O_EXCL), "wb")

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows.drop_columns(list(self._partition)))
        self._rows += rows.num_rows

    def write_group(self) -> None:
        if not self._waiting:
            return
        schema = self._waiting[0].schema
        with name_write_errors(self._path):
            if self._parquet is None:
                self._parquet = pq.ParquetWriter(
                    self._file, schema, compression="zstd", use_dictionary=dictionary_columns(schema)
                )
            self._parquet.write_table(pa.Table.from_batches(self._waiting), sum(map(len, self._waiting)))
        self._waiting = []

    def finish(self) -> dict[str, Any]:
        """Makes the file durable. Returns its part of the committable."""
        self.write_group()
        with name_write_errors(self._path):
            self._parquet.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        size = self._path.stat().st_size
        return {"path": self._path.name, "bytes": size, "rows": self._rows, "partition": self._partition}

    def abandon(self) -> None:
        for part in (self._parquet, self._file):
            if part is not None:
                with suppress(OSError):  # the file is deleted below in any case
                    part.close()
        self._path.unlink(missing_ok=True)


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


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each partition in their order, with the partition's values as Delta's log spells them."""
    if not partition_by:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for name in partition_by:
        encoded = pc.dictionary_encode(batch.column(name), null_encoding="encode")
        codes = np.unique(codes * len(encoded.dictionary) + np.asarray(encoded.indices), return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ordered = batch.take(pa.array(order))
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        rows = ordered.slice(start, end - start)
        yield tuple(_partition_value(rows.column(name)[0].as_py()) for name in partition_by), rows


def _partition_value(value: Any) -> str | None:
    """The value as Delta's log spells it (protocol, "Partition Value Serialization"): empty text is null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None or value == "" else str(value)
