"""The files of a source as its folder has them now, with the types of its partition columns."""

from collections.abc import Container
from typing import Protocol

import msgspec

from runtime.connectors.formats.input_file import InputFile


class ListedFile(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file of a listing. `path` is relative to the folder."""

    path: str
    size_bytes: int


class Listing(msgspec.Struct, frozen=True):
    """The files of a bounded source, in the order of their paths.

    `partition_types`: the inferred types of partition columns, by name; empty if they are declared.
    """

    files: tuple[ListedFile, ...]
    partition_types: dict[str, str] = {}


class OpenInput(Protocol):
    """An open file of a folder. `descriptor` is to be closed after the last use; None: there is none."""

    @property
    def file(self) -> InputFile: ...
    @property
    def descriptor(self) -> int | None: ...
    @property
    def version(self) -> str:
        """Another one if the file was replaced: its size and time of change, and its inode if it has one."""


class InputFolder(Protocol):
    """A folder of input files. Names that begin with "." or "_" are ignored."""

    @property
    def location(self) -> str:
        """The folder as the job names it, for errors."""

    def files(self, known_paths: Container[str] = ()) -> list[ListedFile]:
        """The files except `known_paths`, in any order.

        Raises:
            FileNotFoundError: there is no such folder.
            JobRejected: the folder cannot be read, or lies outside the data roots.
            DataRejected: a file or folder is misplaced or has no readable name; the error names it.
        """

    def open(self, path: str) -> OpenInput:
        """The file `path`.

        Raises:
            FileNotFoundError: there is no such file.
            DataRejected: the file lies outside the data roots.
        """
