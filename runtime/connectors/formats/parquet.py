"""Parquet files, row group by row group.

Statistics leave out row groups without a row for which the filter is true. Arrow computes that
(`ParquetFileFragment.subset`), with two limits that keep it exact:

1. A column whose type in the file differs from the wanted type may be ordered differently.
2. Statistics ignore NaN, for which `not (x < 5)` is true. With a floating-point column, the filter must consist of
   comparisons with `and` and `or`, which NaN never makes true.
"""

import re
from collections.abc import Iterator, Sequence
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
from runtime.state.encoded_texts import encoded_field

_BATCH_ROWS: Final = 65_536
_TEXT_TYPES: Final = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_MIN_PLAIN_BYTES: Final = 4  #: of a text that is not in a dictionary: its length takes so many
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
            with _open(file) as content:
                yield from self._chunks(file, content, scan)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if not is_file_error(error):
                raise
            raise MalformedFile(f"it is not a readable Parquet file: {error}") from error

    def _chunks(self, file: InputFile, content: Any, scan: Scan) -> Iterator[Chunk]:
        metadata = pq.read_metadata(content)
        columns = metadata.schema.to_arrow_schema()
        names, schema = needed_columns(self.schema, columns.names, scan)
        encoded = _dictionary_columns(metadata, columns, names)
        to_texts = _mark if scan.encodes_texts else _decode
        groups, at = self._matching_groups(file, columns, scan), 0
        with pq.ParquetFile(content, metadata=metadata, read_dictionary=encoded) as parquet:
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if not scan.begins(_offset(group)):
                    continue
                stop = at + group.num_rows
                if stop > scan.first_row and (groups is None or number in groups):
                    # A slot has a core: decoding on Arrow's threads takes a fifth more processor time.
                    for batch in parquet.iter_batches(_BATCH_ROWS, [number], names, use_threads=False):
                        if at + batch.num_rows > scan.first_row:
                            yield chunk_of(to_texts(batch, encoded, columns), at, scan.first_row, schema)
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
                subset = fragment.subset(filter=scan.filter, schema=pa.schema(list(fields.values())))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
                return None  # the filter does not fit the columns: evaluated on rows, it raises an error that says so
            return frozenset(group.id for group in subset.row_groups)


@contextmanager
def _open(file: InputFile) -> Iterator[Any]:
    """The path or the open file, for Arrow."""
    if isinstance(file, LocalFile):  # Arrow reads a path with less processor time than an open file
        yield file.path
        return
    with file.open_native() as content:
        yield content


def _dictionary_columns(metadata: Any, columns: pa.Schema, names: Sequence[str]) -> list[str]:
    """The text columns among `names` that the file stores as dictionaries, by the sizes in its first row group.

    Arrow reads a dictionary and its indices, and then decodes them, in less than half the time of reading the values.
    """
    if not metadata.num_row_groups:
        return []
    group = metadata.row_group(0)
    stored = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    return [
        name
        for name in names
        if columns.get_field_index(name) >= 0  # it occurs once
        and columns.field(name).type in _TEXT_TYPES
        and "." not in name  # not the path of a field in a struct
        and stored[name].total_uncompressed_size < _MIN_PLAIN_BYTES * stored[name].num_values
    ]


def _mark(batch: pa.RecordBatch, encoded: Sequence[str], columns: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns `encoded` marked as texts in the types of `columns`.

    Arrow reads the dictionaries of large texts in the type of other texts. Such columns are decoded.
    """
    is_other = [name for name in encoded if batch.schema.field(name).type.value_type != columns.field(name).type]
    batch, encoded = _decode(batch, is_other, columns), [name for name in encoded if name not in is_other]
    fields = [
        encoded_field(columns.field(item.name).remove_metadata(), item.type) if item.name in encoded else item
        for item in batch.schema
    ]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def _decode(batch: pa.RecordBatch, encoded: Sequence[str], columns: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns `encoded` in the types of `columns`."""
    for name in encoded:
        values = batch.column(name).dictionary_decode().cast(columns.field(name).type)
        batch = batch.set_column(batch.schema.get_field_index(name), columns.field(name), values)
    return batch


def _offset(metadata: Any) -> int:
    """The place of a row group in its file."""
    first = metadata.column(0)
    dictionary = first.dictionary_page_offset
    return int(dictionary or first.data_page_offset)


def _has_exact_statistics(filter: pc.Expression, columns: pa.Schema, schema: pa.Schema | None) -> bool:
    """Whether statistics of `columns` of the file decide about `filter` on the columns `schema`."""
    for name in columns_named_in(filter, columns.names):
        kind = columns.field(name).type
        if schema is not None and name in schema.names and schema.field(name).type != kind:
            return False
        if pa.types.is_nested(kind):
            return False
        if pa.types.is_floating(kind) and _NOT_MONOTONE.search(_TEXT_LITERAL.sub("0", str(filter))):
            return False
    return True
