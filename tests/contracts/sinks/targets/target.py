"""A target of the contract suite, as its tests use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from runtime.ports import Sink
from tests.contracts.sinks.disks import frozen, full, read_only
from tests.stalls import Stall


@dataclass(frozen=True)
class Server:
    """A server behind a proxy. `controls`: the object by which a test makes it fail."""

    address: str
    stall: Stall
    controls: Any = None


@dataclass(frozen=True)
class Place:
    """Where a target lies.

    Args:
        folder: folder for files of the target.
        name: unique to the test.
        servers: by name of the fixture.
        job: folder of the job's own files.
    """

    folder: Path
    name: str
    servers: dict[str, Server]
    job: Path


class Target(ABC):
    """A target of rows of `job_process.SCHEMA`."""

    servers: ClassVar[tuple[str, ...]] = ()  #: fixtures with a `Server`
    is_long: ClassVar[bool] = False  #: its tests belong to the long suite
    repeats: ClassVar[bool] = False  #: rows may stand there twice: the sink is at-least-once

    #: name of an obstruction -> pattern of the job's log while it lasts, see `obstructed`
    obstructions: ClassVar[Mapping[str, str]] = {}
    #: as `obstructions`, for obstructions that end the job; the job goes on when it is started again
    refusals: ClassVar[Mapping[str, str]] = {}
    on_deletion: ClassVar[str] = ""  #: pattern of the failure after `delete`; "": the target is never deleted
    prepares_there: ClassVar[bool] = True  #: False: rows wait in files for the commit of their checkpoint
    #: name of a time-out of the server -> pattern of the failure that names lost rows, see `expire`; "": no row is lost
    expiries: ClassVar[Mapping[str, str]] = {}
    #: name of a cell -> the reason why the target has none
    without: ClassVar[Mapping[str, str]] = {}

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

    def obstructed(self, name: str) -> AbstractContextManager[None]:
        """Within the block the target is `full` or `read-only` as the disk of its files, or obstructed otherwise."""
        return {"full": full, "read-only": read_only}[name](self.place.folder)

    def stalled(self) -> AbstractContextManager[None]:
        """Within the block the target does not answer. By default it is the disk of its files that waits."""
        return frozen(self.place.folder)

    def expire(self, name: str) -> None:
        """Ends an open or prepared transaction, or a session, of the running job from outside."""
        raise NotImplementedError

    def delete(self) -> None:
        """Deletes the target with its rows."""
        raise NotImplementedError
