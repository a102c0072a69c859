"""Ports that sources and sinks share: their folders and their PySpark stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class UsesFolders(Protocol):
    """A source or sink that reads or writes folders, local or on a file system that every host mounts."""

    def folders(self) -> Mapping[str, str]:
        """Argument name -> folder. Only these folders are checked against WEIR_DATA_ROOTS."""


@runtime_checkable
class UsesUrls(Protocol):
    """A source or sink that reads or writes object stores."""

    def urls(self) -> Mapping[str, str]:
        """Argument name -> URL."""


@dataclass(frozen=True, slots=True)
class StageFolders:
    """Folders that a source or sink shares with its PySpark stage.

    Args:
        columns: folder of the job version that caches the columns of DataFrames as Spark reported them.
        streams: folder of the run and of the runs whose checkpoints it continues; "" if unknown, as at compile time.
        inputs: folder like `streams`, for bounded sources.
    """

    columns: str
    streams: str = ""
    inputs: str = ""


@runtime_checkable
class BindsUid(Protocol):
    """A source or sink that derives its folders from the uid of its operator, when it is added to a dataflow."""

    def bind(self, uid: str, folders: StageFolders) -> Any:
        """A copy of the source or sink, with its folders."""


@runtime_checkable
class HasStandingStage(Protocol):
    """A source or sink with a PySpark stage that runs for the lifetime of the run."""

    @property
    def stage(self) -> str:
        """The argument VERB of `python -m spark_jobs stand` that selects the stage."""
