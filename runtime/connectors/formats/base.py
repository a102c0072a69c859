"""The protocol of a format: a file becomes chunks.

A chunk is a batch, the number of the row after it, and the malformed rows, each with its number, column and reason. The
source decides how to treat malformed rows. Rows are counted from 0 in code and from 1 in messages, without header and
blank lines. `LineFormat` also counts blank lines.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.connectors.formats.input_file import WHOLE_FILE, InputFile, LocalFile, Scan
from runtime.errors import JobRejected, WeirError

RowNumbers = npt.NDArray[np.int64]


class MalformedFile(WeirError):
    """A whole file cannot be read: its header is wrong, or it is not Parquet. The message omits the file name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A row or file that cannot be read. `row` counts from 0; None: the whole file is malformed."""

    row: int | None
    column: str
    reason: str
    text: str  #: content of the row

    def __str__(self) -> str:
        where = "" if self.row is None else f"row {self.row + 1}, " if self.column else f"row {self.row + 1}: "
        column = f"column {self.column!r}: " if self.column else ""
        return f"{where}{column}{self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a file. `rows` holds the row number of each row of `batch`."""

    batch: pa.RecordBatch
    rows: RowNumbers
    next_row: int
    malformed: tuple[Malformed, ...] = ()


def check_schema(schema: pa.Schema) -> None:
    """Raises JobRejected for a schema without columns or with a duplicate column."""
    if not len(schema):
        raise JobRejected("bad-format", "schema", "there must be at least one column")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise JobRejected("bad-format", "schema", f"there is more than one column {name!r}")


def require_columns(columns: Sequence[str], names: Sequence[str], who: str) -> None:
    """Raises MalformedFile unless each of `columns` occurs exactly once in `names`; `who` begins the message."""
    for name in columns:
        if names.count(name) != 1:
            times = "no" if name not in names else "more than one"
            raise MalformedFile(f"{who} has {times} column {name!r}; it has {', '.join(names)}")


class Format(Protocol):
    """Describes how files are read. Must be picklable by cloudpickle."""

    def check(self) -> None:
        """Raises JobRejected if a setting is invalid."""

    def columns(self) -> pa.Schema | None:
        """The columns of every batch; None if they are taken from the first file."""

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        """The rows of `path` from `first_row` on, in chunks. Closing the iterator closes the file.

        Raises:
            MalformedFile: the file can never be read.
            OSError: the file cannot be read now; a later try may succeed.
        """


class ScannedFormat(ABC):
    """A format that reads parts of local and remote files. Other formats read whole local files only."""

    splits_files: ClassVar[bool] = True  #: whether a file can be cut into splits at any byte

    @abstractmethod
    def check(self) -> None: ...

    @abstractmethod
    def columns(self) -> pa.Schema | None: ...

    @abstractmethod
    def scan(self, file: InputFile, scan: Scan) -> Iterator[Chunk]:
        """The rows of a part of `file`, in chunks, with all needed columns. Closing the iterator closes the file.

        Raises:
            MalformedFile: the file can never be read.
            OSError: the file cannot be read now; a later try may succeed.
        """

    def read(self, path: Path, first_row: int) -> Iterator[Chunk]:
        return self.scan(LocalFile(path), replace(WHOLE_FILE, first_row=first_row))
