"""The columns and rows of files that become rows of the stream: partition columns, pruning and filters.

Formats leave out columns and rows as far as they can (`Scan`). Here the rest is left out, so the result is exact with
any format.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runtime.connectors.formats import Chunk, MalformedFile
from runtime.connectors.formats.input_file import Scan
from runtime.connectors.sources.file_positions import Split, SplitPosition
from runtime.errors import DataRejected, JobRejected
from runtime.operators.expressions import filter_mask

Values = Mapping[str, pa.Scalar]  #: of the partition columns of a file


@dataclass(frozen=True)
class Selection:
    """Args:
    file_columns: the columns of the format; None: those of the first file.
    partition: the partition columns.
    columns: the columns of the stream; None: all columns of the files, then the partition columns.
    filter: the rows of the stream; None: all rows.
    used: if `columns` is None: the columns that later steps use; None: all columns.
    encodes_texts: texts of few values may stay dictionary-encoded.
    """

    file_columns: pa.Schema | None = None
    partition: pa.Schema = pa.schema([])
    columns: tuple[str, ...] | None = None
    filter: pc.Expression | None = None
    used: frozenset[str] | None = None
    encodes_texts: bool = False

    def check(self) -> None:
        """Raises JobRejected if a column is unknown, or the filter does not fit; unknown columns are not checked."""
        if isinstance(self.columns, str) or (self.columns is not None and not self.columns):
            raise JobRejected("bad-columns", "columns", "must be a tuple of at least one column")
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise JobRejected("bad-columns", "columns", f"a column is named twice: {', '.join(self.columns)}")
        if self.filter is not None and not isinstance(self.filter, pc.Expression):
            detail = f"must be an Arrow expression such as pc.field('fare') > 0, not {type(self.filter).__name__}"
            raise JobRejected("bad-expression", "filter", detail)
        if (schema := self._all_columns()) is None:
            return
        for name in self.columns or ():
            if name not in schema.names:
                detail = f"there is no column {name!r}; the columns are {', '.join(schema.names)}"
                raise JobRejected("unknown-column", "columns", detail)
        if self.filter is not None:
            try:
                filter_mask(self.filter, pa.RecordBatch.from_pylist([], schema))
            except (JobRejected, DataRejected) as error:
                raise JobRejected(getattr(error, "code", "bad-expression"), "filter", str(error)) from error

    def output_columns(self) -> pa.Schema | None:
        """The columns of the stream; None if they depend on the files."""
        schema = self._all_columns()
        return schema if schema is None or self.columns is None else pa.schema([schema.field(c) for c in self.columns])

    def _all_columns(self) -> pa.Schema | None:
        return None if self.file_columns is None else pa.schema([*self.file_columns, *self.partition])

    def excludes(self, values: Values) -> bool:
        """Whether the filter is true for no row of a file with these partition values, without looking at the file."""
        if self.filter is None or not values:
            return False
        from pyarrow import dataset, fs  # imports pandas, which a process that forks slots must not have

        files, local = dataset.ParquetFileFormat(), fs.LocalFileSystem()
        guarantee = Scan(partition=values).partition_expression
        fragment = files.make_fragment("-", local, guarantee)
        schema = self._all_columns() or self.partition
        try:
            fragments = dataset.FileSystemDataset([fragment], schema, files, local).get_fragments(self.filter)
            return not list(fragments)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return False  # the filter needs columns of the file

    def scan(self, split: Split, position: SplitPosition, values: Values) -> Scan:
        columns = None if self.columns is None else tuple(name for name in self.columns if name not in values)
        return Scan(
            start=split.start,
            stop=None if split.stop == position.size_bytes else split.stop,
            first_row=position.next_row,
            columns=columns,
            used=None if self.used is None else self.used - values.keys(),
            filter=self.filter,
            partition=values,
            encodes_texts=self.encodes_texts,
        )

    def apply(self, chunks: Iterator[Chunk], values: Values) -> Iterator[Chunk]:
        """The rows and columns of the stream. Closing the result closes `chunks`."""
        if self.columns is None and self.filter is None and not values:
            return chunks
        return self._apply(chunks, values)

    def _apply(self, chunks: Iterator[Chunk], values: Values) -> Iterator[Chunk]:
        try:
            for chunk in chunks:
                yield self._select(_with_values(chunk, values))
        finally:
            close: Any = getattr(chunks, "close", lambda: None)
            close()

    def _select(self, chunk: Chunk) -> Chunk:
        batch, rows = chunk.batch, chunk.rows
        if self.filter is not None and batch.num_rows:
            try:
                mask = pc.fill_null(filter_mask(self.filter, batch), False)
            except JobRejected as error:
                raise MalformedFile(f"filter: {error.detail}") from error
            batch, rows = batch.filter(mask), rows[mask.to_numpy(zero_copy_only=False)]
        if self.columns is not None:
            missing = [name for name in self.columns if name not in batch.schema.names]
            if missing:
                raise MalformedFile(f"it has no column {missing[0]!r}; it has {', '.join(batch.schema.names)}")
            batch = batch.select(list(self.columns))
        return Chunk(batch=batch, rows=rows, next_row=chunk.next_row, malformed=chunk.malformed)


def _with_values(chunk: Chunk, values: Values) -> Chunk:
    """The chunk with partition columns at its end; they replace columns of the same name, as in Spark."""
    if not values:
        return chunk
    batch = chunk.batch
    fields = [item for item in batch.schema if item.name not in values]
    schema = pa.schema([*fields, *(pa.field(name, value.type) for name, value in values.items())])
    arrays = [batch.column(item.name) for item in fields]
    arrays += [pa.repeat(value, batch.num_rows) for value in values.values()]
    result = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Chunk(batch=result, rows=chunk.rows, next_row=chunk.next_row, malformed=chunk.malformed)
