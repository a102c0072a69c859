"""A target of the contract suite, as its tests use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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

    def settle(self) -> None:
        """Called once after a job has ended, for a server that shows a commit late."""

    @abstractmethod
    def ids(self) -> list[int]:
        """The `id` of each row that a reader of the target sees."""

    def leftovers(self) -> list[str]:
        """What the sink has left behind in the target besides its rows and its own records of commits."""
        return []
