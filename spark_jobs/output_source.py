"""Committed output as a DataFrame: the Spark data source `weir-output`.

    spark.read.format("weir-output").load("/data/out")                                     all epochs
    spark.read.format("weir-output").option("from_epoch", 12).load("/data/out")            epochs after epoch 11

The source reads the commit log of the folder (`runtime/connectors/commit_log`), not the folder's listing. So a read
returns all rows that a sink wrote for a checkpoint, or none, even while the job commits. The set of epochs is fixed
when the DataFrame is planned.

Partition columns come from the folder names, as text. A schema given by `.schema(…)` may name other types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from runtime.connectors.commit_log import CommitLog, CommittedEpoch, LoggedFile
from runtime.connectors.names import encode_name
from runtime.connectors.partitions import partition_values
from runtime.errors import CorruptState, DataRejected, JobRejected
from spark_jobs.column_types import spark_schema, to_spark_types

PARTITION_BYTES: Final = 128 << 20  #: bytes of files per partition, as in Spark's file sources
BATCH_ROWS: Final = 1 << 16


class OutputSource(DataSource):
    """Options: `path` (by `load`), `job` and `sink` to select a sink, `from_epoch` and `to_epoch`, both inclusive."""

    @classmethod
    def name(cls) -> str:
        return "weir-output"

    def schema(self) -> StructType:
        """The schema of the newest file among the selected epochs."""
        log, epochs = self._selection()
        newest = next((epoch for epoch in reversed(epochs) if epoch.files), None)
        if newest is None:
            detail = f"{log.output} has no such epoch yet: give the columns by .schema(…), or try again later"
            raise JobRejected("no-epoch", "path", detail)
        return spark_schema(_schema_of(log.output, newest.files[0].name, newest.number))

    def reader(self, schema: StructType) -> DataSourceReader:
        log, epochs = self._selection()
        is_own_schema = bool(epochs) and schema == self.schema()
        return OutputReader(str(log.output), epochs, to_arrow_schema(schema, timezone="UTC"), all_columns=is_own_schema)

    def _selection(self) -> tuple[CommitLog, list[CommittedEpoch]]:
        """The selected epochs, by sink and in order."""
        path = self.options.get("path")
        if not path:
            raise JobRejected("no-path", "path", "name the output folder of a job: .load(folder)")
        log = CommitLog(Path(path.removeprefix("file://")).absolute())
        if not log.exists:
            detail = f"{log.output} has no commit log: no checkpoint has committed rows here"
            raise JobRejected("no-commit-log", "path", detail)
        first, last = self._number("from_epoch"), self._number("to_epoch")
        sinks = self._sinks(log)
        if len(sinks) > 1 and (first, last) != (None, None):
            detail = f"several sinks number their epochs here: select a `job` and `sink` of {_format_sinks(sinks)}"
            raise JobRejected("several-sinks", "sink", detail)
        return log, [
            epoch
            for job, sink in sinks
            for epoch in log.epochs(job, sink)
            if (first is None or epoch.number >= first) and (last is None or epoch.number <= last)
        ]

    def _sinks(self, log: CommitLog) -> list[tuple[str, str]]:
        job, sink = self.options.get("job"), self.options.get("sink")
        sinks = log.sinks()
        matches = [pair for pair in sinks if job in (None, "") or pair[0] == encode_name(job)]
        matches = [pair for pair in matches if sink in (None, "") or pair[1] == encode_name(sink)]
        if not matches:
            field = "sink" if sink else "job"
            raise JobRejected(f"unknown-{field}", field, f"no such output in {log.output}, only {_format_sinks(sinks)}")
        return matches

    def _number(self, option: str) -> int | None:
        text = self.options.get(option)
        if text is None:
            return None
        if not text.isdecimal():
            raise JobRejected("bad-epoch", option, f"the number of an epoch, 0 or greater, not {text!r}")
        return int(text)


@dataclass
class FilePartition(InputPartition):
    """Files of a folder, each with its epoch."""

    files: list[tuple[str, int]]


class OutputReader(DataSourceReader):
    """Reads the files of epochs.

    Args:
        all_columns: refuse a file with a column that is not in `schema`, instead of dropping the column.
    """

    def __init__(self, folder: str, epochs: Sequence[CommittedEpoch], schema: pa.Schema, *, all_columns: bool) -> None:
        self._folder, self._schema, self._all_columns = folder, schema, all_columns
        self._files = [(file, epoch.number) for epoch in epochs for file in epoch.files]

    def partitions(self) -> Sequence[InputPartition]:
        return [FilePartition(group) for group in _groups(self._files)] or [FilePartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePartition), "only partitions of this reader"
        for name, epoch in partition.files:
            path, values = Path(self._folder, name), partition_values(name)
            columns = [column for column in self._columns_of(name, epoch) if column not in values]
            with _open_file(path, epoch) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                    yield self._cast_batch(_with_partition(batch, values), path)

    def _columns_of(self, name: str, epoch: int) -> list[str]:
        """The columns of the file and its partition that are in the schema."""
        path, schema = Path(self._folder, name), _schema_of(Path(self._folder), name, epoch)
        strange = sorted(set(schema.names) - set(self._schema.names))
        if strange and self._all_columns:
            detail = (
                f"{path}: epoch {epoch} has a column {strange[0]!r}, which the newest epoch lacks: name the columns"
            )
            raise DataRejected(f"schema-differs: {detail} to read by .schema(…)")
        return [column for column in schema.names if column in self._schema.names]

    def _cast_batch(self, batch: pa.RecordBatch, path: Path) -> pa.RecordBatch:
        """The batch in the requested schema; a column that an older file lacks is null."""
        spark_batch = to_spark_types(batch)
        columns = []
        for field in self._schema:
            place = spark_batch.schema.get_field_index(field.name)
            column = pa.nulls(batch.num_rows, field.type) if place < 0 else spark_batch.column(place)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                detail = f"{path}: column {field.name!r} is {column.type}; requested is {field.type}: {error}"
                raise DataRejected(f"schema-differs: {detail}") from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _groups(files: Sequence[tuple[LoggedFile, int]]) -> Iterator[list[tuple[str, int]]]:
    """Files in order, in groups of about `PARTITION_BYTES`."""
    group: list[tuple[str, int]] = []
    nbytes = 0
    for file, epoch in files:
        if group and nbytes + file.bytes > PARTITION_BYTES:
            yield group
            group, nbytes = [], 0
        group.append((file.name, epoch))
        nbytes += file.bytes
    if group:
        yield group


def _schema_of(folder: Path, name: str, epoch: int) -> pa.Schema:
    """The columns of a file of the folder, and those of its partition."""
    with _open_file(folder / name, epoch) as file:
        return pa.schema([*file.schema_arrow, *(pa.field(column, pa.string()) for column in partition_values(name))])


def _with_partition(batch: pa.RecordBatch, values: Mapping[str, str | None]) -> pa.RecordBatch:
    """The batch with the columns of its partition."""
    for column, value in values.items():
        batch = batch.append_column(column, pa.repeat(pa.scalar(value, pa.string()), batch.num_rows))
    return batch


def _open_file(path: Path, epoch: int) -> Any:
    """Opens a Parquet file.

    Raises:
        CorruptState: the file is missing or damaged; path and epoch are named.
        JobRejected: the sink wrote files of another format.
    """
    if path.suffix != ".parquet":
        raise JobRejected("not-parquet", "path", f"{path} is no Parquet file: read the folder by another data source")
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError as error:
        problem = f"epoch {epoch} names it, but it was moved or deleted: read from a later epoch (`from_epoch`)"
        raise CorruptState(str(path), problem) from error
    except pa.ArrowInvalid as error:
        raise CorruptState(str(path), f"epoch {epoch} names it, but it is not a Parquet file: {error}") from error


def _format_sinks(sinks: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"job {job} sink {sink}" for job, sink in sinks) or "none"
