"""Parquet files, row group by row group.

Statistics leave out row groups without a row for which the filter is true. Arrow computes that
(`ParquetFileFragment.subset`), with two limits that keep it exact:

1. A column whose type in the file differs from the wanted type may be ordered differently.
2. Statistics ignore NaN, for which `not (x < 5)` is true. With a floating-point column, the filter must consist of
   comparisons with `and` and `or`, which NaN never makes true.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from runtime.connectors.formats.base import Chunk, MalformedFile, ScannedFormat, check_schema
from runtime.connectors.formats.columns import chunk_of, is_file_error, needed_columns
from runtime.connectors.formats.input_file import InputFile, LocalFile, Scan
from runtime.operators.expressions import columns_named_in

_BATCH_ROWS: Final = 65_536
_TEXT_LITERAL: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
#: anything but `and`, `or`, and comparisons of a column with a value: calls, `!=`, comparisons of comparisons
_NOT_MONOTONE: Final = re.compile(r"[\w.]\(|!=|\)\s*(?:==|<|>)|(?:=|<|>)\s*\(")


@dataclass(frozen=True)
class ParquetFormat(ScannedFormat):
    """Parquet files.

    Args:
        schema: the wanted columns with their types; a field that is not nullable must have a value. None: all columns
            of the first file.
    """

    schema: pa.Schema | None = None

    def check(self) -> None:
        if self.schema is not None:
            check_schema(self.schema)

    def columns(self) -> pa.Schema | None:
        return self.schema

    def scan(self, file: InputFile, scan: Scan) -> Iterator[Chunk]:
        try:
            with _open(file) as parquet:
                yield from self._chunks(file, parquet, scan)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if not is_file_error(error):
                raise
            raise MalformedFile(f"it is not a readable Parquet file: {error}") from error

    def _chunks(self, file: InputFile, parquet: Any, scan: Scan) -> Iterator[Chunk]:
        names, wanted = needed_columns(self.schema, parquet.schema_arrow.names, scan)
        groups = self._matching_groups(file, parquet.schema_arrow, scan)
        at = 0
        for group in range(parquet.num_row_groups):
            metadata = parquet.metadata.row_group(group)
            if not scan.begins(_offset(metadata)):
                continue
            stop = at + metadata.num_rows
            if stop > scan.first_row and (groups is None or group in groups):
                for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                    if at + batch.num_rows > scan.first_row:
                        yield chunk_of(batch, at, scan.first_row, wanted)
                    at += batch.num_rows
            at = stop

    def _matching_groups(self, file: InputFile, columns: pa.Schema, scan: Scan) -> frozenset[int] | None:
        """The row groups that may have rows for the filter; None: every row group."""
        if scan.filter is None or not _has_exact_statistics(scan.filter, columns, self.schema):
            return None
        from pyarrow import dataset  # imports pandas, which a process that forks slots must not have

        fields = {item.name: item for item in columns}
        fields |= {name: pa.field(name, value.type) for name, value in scan.partition.items()}
        with file.open_native() as content:
            fragment = dataset.ParquetFileFormat().make_fragment(
                content, partition_expression=scan.partition_expression
            )
            try:
                found = fragment.subset(filter=scan.filter, schema=pa.schema(list(fields.values())))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                return None  # the filter does not fit the columns: evaluated on rows, it raises an error that says so
            return frozenset(group.id for group in found.row_groups)


@contextmanager
def _open(file: InputFile) -> Iterator[Any]:
    if isinstance(file, LocalFile):  # Arrow reads a path with less processor time than an open file
        with pq.ParquetFile(file.path) as parquet:
            yield parquet
        return
    with file.open_native() as content, pq.ParquetFile(content) as parquet:
        yield parquet


def _offset(metadata: Any) -> int:
    """The place of a row group in its file."""
    first = metadata.column(0)
    dictionary = first.dictionary_page_offset
    return int(dictionary or first.data_page_offset)


def _has_exact_statistics(filter: pc.Expression, found: pa.Schema, wanted: pa.Schema | None) -> bool:
    """Whether statistics of columns `found` in the file decide about `filter` on columns `wanted`."""
    for name in columns_named_in(filter, found.names):
        kind = found.field(name).type
        if wanted is not None and name in wanted.names and wanted.field(name).type != kind:
            return False
        if pa.types.is_nested(kind):
            return False
        if pa.types.is_floating(kind) and _NOT_MONOTONE.search(_TEXT_LITERAL.sub("0", str(filter))):
            return False
    return True
