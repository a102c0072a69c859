"""The targets of the contract suite: for each sink, how a test makes its target, writes to it and reads it back.

A new sink needs a class here and a line in `TARGETS`; every test of the suite then runs on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import pyarrow.dataset as ds

import weir
from runtime.ports import Sink


@dataclass(frozen=True)
class Place:
    """Where a target lies. `name` is unique to the test; `servers`: address by name of the fixture."""

    folder: Path
    name: str
    servers: dict[str, str]


class Target(ABC):
    """A target of rows of `job_process.SCHEMA`."""

    servers: ClassVar[tuple[str, ...]] = ()  #: fixtures with the address of a server
    repeats: ClassVar[bool] = False  #: rows may stand there twice: the sink is at-least-once

    def __init__(self, place: Place) -> None:
        self.place = place

    def create(self) -> None:
        """Makes the table or topic, where the sink does not do so itself."""

    @abstractmethod
    def sink(self) -> Sink: ...

    @abstractmethod
    def ids(self) -> list[int]:
        """The `id` of each row that a reader of the target sees."""

    def leftovers(self) -> list[str]:
        """What the sink has left behind in the target besides its rows and its own records of commits."""
        return []


class ParquetFolder(Target):
    def sink(self) -> Sink:
        return weir.ParquetSink(str(self.place.folder / "out"))

    def ids(self) -> list[int]:
        folder = self.place.folder / "out"
        if not any(folder.glob("part-*")):
            return []
        found: list[int] = ds.dataset(folder, format="parquet").to_table(columns=["id"])["id"].to_pylist()
        return found

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.place.folder / "out").glob(".weir-*")]


TARGETS: Final[tuple[type[Target], ...]] = (ParquetFolder,)
