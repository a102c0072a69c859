"""What a format is: files in, chunks out. It knows no format.

A chunk is a batch, the number of the row after it, and the rows that could not be read, each with its number, column
and reason. What to do about those is the source's policy. Rows are counted from 0 in code and from 1 in messages,
without header and blank lines (lines of text: with blank ones).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.errors import JobRejected, WeirError

RowNumbers = npt.NDArray[np.int64]


class MalformedFile(WeirError):
    """A file that cannot be read as a whole: a wrong header, not Parquet. The message says why, without the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A row that could not be read. `row` counts from 0; None: the whole file."""

    row: int | None
    column: str
    reason: str
    text: str  #: what is there

    def __str__(self) -> str:
        where = "" if self.row is None else f"row {self.row + 1}, " if self.column else f"row {self.row + 1}: "
        column = f"column {self.column!r}: " if self.column else ""
        return f"{where}{column}{self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a file. `rows` are the numbers of the batch's rows."""

    batch: pa.RecordBatch
    rows: RowNumbers
    next_row: int
    malformed: tuple[Malformed, ...] = ()


def check_schema(schema: pa.Schema) -> None:
    """Refuses one without columns, and one with a column twice. Raises JobRejected."""
    if not len(schema):
        raise JobRejected("bad-format", "schema", "there must be at least one column")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise JobRejected("bad-format", "schema", f"there is more than one column {name!r}")


def require_columns(wanted: pa.Schema, names: Sequence[str], who: str) -> None:
    """Each column wanted must be among `names` once. Raises MalformedFile."""
    for name in wanted.names:
        if names.count(name) != 1:
            times = "no" if name not in names else "more than one"
            raise MalformedFile(f"{who} has {times} column {name!r}; it has {', '.join(names)}")


class Format(Protocol):
    """Describes how files are read. Must survive cloudpickle."""

    def check(self) -> None:
        """Refuses bad settings. Raises JobRejected."""

    def columns(self) -> pa.Schema | None:
        """The columns of every batch; None when the files say."""

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        """The rows of `path` from `first_row` on, piece by piece. Closing the iterator closes the file.

        Raises:
            MalformedFile: it cannot be read at all, now or later.
            OSError: it cannot be read now; nothing is said about the file.
        """
