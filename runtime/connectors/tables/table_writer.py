"""Writers of tables with a transaction log: Parquet files in the table's folder, unseen by readers before the commit.

A writer has a file per checkpoint and partition. The table's format decides the columns of the files and how rows are
partitioned (`DeltaWriter`, `IcebergWriter`).
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runtime.connectors.sinks.parquet_file import ROW_GROUP_BYTES, dictionary_columns
from runtime.connectors.tables.data_files import new_owner
from runtime.connectors.tables.data_folder import DataFolder
from runtime.errors import DataRejected, EnvironmentFailure
from runtime.ports import OperatorContext, SinkWriter


class TableWriter(SinkWriter):
    """Writes a file per checkpoint and partition.

    `adopt` sets `folder` before the first file is created.
    """

    folder: DataFolder

    def __init__(self) -> None:
        self._number = 1
        self._given: pa.Schema | None = None  #: columns of the batches
        self._open: dict[tuple[Any, ...], _PartitionFile] = {}
        self._written: list[dict[str, Any]] = []
        self._waiting_bytes = 0

    def open(self, context: OperatorContext) -> None:
        self._owner = new_owner(context)

    @abstractmethod
    def adopt(self, schema: pa.Schema) -> None:
        """Prepares for rows of these columns. Raises JobRejected unless the table accepts them."""

    @abstractmethod
    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the types of the table. Raises DataRejected if a value does not fit."""

    @abstractmethod
    def partitions(self, batch: pa.RecordBatch) -> Iterable[tuple[tuple[Any, ...], pa.RecordBatch]]:
        """Converted rows by partition: the partition's values, and the rows as its file contains them."""

    @abstractmethod
    def partition_json(self, values: tuple[Any, ...]) -> Any:
        """The values of a partition as the committable names them."""

    @abstractmethod
    def table_json(self) -> Mapping[str, Any]:
        """The parts of a committable that describe the table."""

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if batch.schema != self._given:
            self.adopt(batch.schema)
            self._given = batch.schema
        batch = self.convert(batch)
        for values, rows in self.partitions(batch):
            self._file_of(values).add(rows)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_groups()
        if self.folder.is_full:
            self._finish_files()

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        if not self._open and not self._written:
            return ()
        self.folder.check()
        self._finish_files()
        self.folder.sync()
        committable = {
            "owner": self._owner,
            "number": self._number,
            "rows": sum(file["rows"] for file in self._written),
            "bytes": sum(file["bytes"] for file in self._written),
            "folder": self.folder.location,
            "files": self._written,
            **self.table_json(),
        }
        self._written = []
        self._number += 1
        return (committable,)

    def close(self) -> None:
        """Deletes the files that belong to no checkpoint. Prepared files stay."""
        for file in self._open.values():
            file.discard()
        if self._written:
            with suppress(EnvironmentFailure):  # the clean-up before the next attempt deletes them
                self.folder.delete([written["path"] for written in self._written])
        self._open, self._written = {}, []

    def _file_of(self, values: tuple[Any, ...]) -> "_PartitionFile":
        if values not in self._open:
            if len(self._open) == self.folder.max_open_files:
                self._finish_files()
            name = f"part-{self._owner}-{self._number}-{len(self._written) + len(self._open)}.parquet"
            self._open[values] = _PartitionFile(self.folder, name, self.partition_json(values))
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
    """A Parquet file in progress."""

    def __init__(self, folder: DataFolder, name: str, partition: Any) -> None:
        self._name, self._partition = name, partition
        self._rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._parquet: Any = None
        self._file = folder.create(name)

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows

    def write_group(self) -> None:
        if not self._waiting:
            return
        schema = self._waiting[0].schema
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(
                self._file, schema, compression="zstd", use_dictionary=dictionary_columns(schema)
            )
        self._parquet.write_table(pa.Table.from_batches(self._waiting), sum(map(len, self._waiting)))
        self._waiting = []

    def finish(self) -> dict[str, Any]:
        """Makes the file durable. Returns its part of the committable."""
        self.write_group()
        self._parquet.close()
        return {"path": self._name, **self._file.finish(), "rows": self._rows, "partition": self._partition}

    def discard(self) -> None:
        if self._parquet is not None:
            with suppress(OSError, EnvironmentFailure):  # the file is deleted below in any case
                self._parquet.close()
        self._file.discard()


def check_required(table: str, batch: pa.RecordBatch, required: Iterable[str]) -> None:
    """Raises DataRejected if a column of `required` has a null; table and column are named."""
    for name in required:
        if batch.column(name).null_count:
            problem = f"column {name} is required in the table, and a row has no value: filter such rows"
            raise DataRejected(f"{table}: {problem}")


def split(batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The rows of each combination of values of `keys`, in their order, with these values as Python objects."""
    if not keys:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for key in keys:
        encoded = pc.dictionary_encode(key, null_encoding="encode")
        codes = np.unique(codes * len(encoded.dictionary) + np.asarray(encoded.indices), return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ordered = batch.take(pa.array(order))
    for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        row = int(order[start])
        yield tuple(key[row].as_py() for key in keys), ordered.slice(start, end - start)
