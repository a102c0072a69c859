"""A file to read, and the part of it to read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from runtime.operators.expressions import columns_named_in


class InputFile(Protocol):
    """A file on a local or remote file system. Opening it raises OSError if it cannot be read now."""

    @property
    def size_bytes(self) -> int: ...
    def open(self) -> BinaryIO:
        """The file for parsers in Python: reads are buffered."""

    def open_native(self) -> pa.NativeFile:
        """The file for parsers of Arrow."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file at a local path."""

    path: Path

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size

    def open(self) -> BinaryIO:
        return self.path.open("rb")

    def open_native(self) -> pa.NativeFile:
        return pa.OSFile(str(self.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The part of a file to read.

    Args:
        start, stop: the byte range of a split, to which the rows, blocks or row groups belong that begin in it. None:
            to the end of the file. Formats without `splits_files` get whole files.
        first_row: number of the first row, as `Chunk.rows` numbers the rows of this split.
        columns: the needed columns, besides columns of the filter; None: all. Others may be left out.
        used: if `columns` is None: the columns that later steps use, besides columns of the filter; None: all. The file
            may lack some of them.
        filter: rows for which it is not true may be left out, for example by statistics.
        partition: a value for every row of the file, by name of a column that the file lacks.
        encodes_texts: texts of few values may stay dictionary-encoded (`state.encoded_texts`).
    """

    start: int = 0
    stop: int | None = None
    first_row: int = 0
    columns: tuple[str, ...] | None = None
    used: frozenset[str] | None = None
    filter: pc.Expression | None = None
    partition: Mapping[str, pa.Scalar] = field(default_factory=dict)
    encodes_texts: bool = False

    def begins(self, offset: int) -> bool:
        """Whether a row group or block that begins at byte `offset` belongs to the split."""
        return (offset >= self.start or not self.start) and (self.stop is None or offset < self.stop)

    def names(self, names: Iterable[str]) -> list[str]:
        """The needed columns among `names`. At least one, since a batch without columns has no number of rows."""
        columns = list(names)
        selection = self.used if self.columns is None else self.columns
        if selection is None:
            return columns
        column_set = {*selection, *columns_named_in(self.filter, columns)}
        return [name for name in columns if name in column_set] or columns[:1]

    def narrow(self, schema: pa.Schema) -> pa.Schema:
        """The needed columns of `schema`."""
        return pa.schema([schema.field(name) for name in self.names(schema.names)])

    @property
    def partition_expression(self) -> pc.Expression | None:
        """An expression that is true for every row of the file; None without partition columns."""
        parts = [
            pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            for name, value in self.partition.items()
        ]
        return reduce(and_, parts) if parts else None


WHOLE_FILE = Scan()
