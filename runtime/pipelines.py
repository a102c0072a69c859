"""Pipelines: named, parameterised jobs that installed packages offer, and the registry in which they are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import PurePosixPath
from typing import Any, Final, Generic, TypeVar

import msgspec

from runtime.dataflow import Dataflow
from runtime.errors import JobRejected

ENTRY_POINT_GROUP: Final = "weir.pipelines"

P = TypeVar("P", bound=msgspec.Struct)


@dataclass(frozen=True)
class PipelineContext:
    """What a pipeline may ask its surroundings: where its materialised bounded inputs lie."""

    input_root: str

    def input(self, name: str) -> str:
        return str(PurePosixPath(self.input_root) / name)


@dataclass(frozen=True, kw_only=True)
class Pipeline(Generic[P]):
    """A named, parameterised job, offered through the entry point group `weir.pipelines`.

    Args:
        params: a msgspec Struct; its JSON schema is what the console checks and draws a form from.
        build: makes the dataflow; touches nothing outside.
        inputs: bounded inputs by name; each is a function (SparkSession, params) -> DataFrame that a PySpark stage
            materialises once per version, in a stable order, before the first run.
    """

    name: str
    description: str
    params: type[P]
    build: Callable[[P, PipelineContext], Dataflow]
    inputs: Mapping[str, Callable[[Any, P], Any]] = field(default_factory=dict)

    def parse(self, raw: Mapping[str, Any]) -> P:
        """Raises JobRejected naming the parameter."""
        try:
            return msgspec.convert(dict(raw), self.params, strict=True)
        except msgspec.ValidationError as error:
            text = str(error)
            where = text.rsplit("`$.", 1)[1].rstrip("`") if "`$." in text else "params"
            raise JobRejected("bad-params", where, text.split(" - at", maxsplit=1)[0]) from error


def pipelines() -> dict[str, Pipeline[Any]]:
    """Every installed pipeline, by name."""
    found = (point.load() for point in entry_points(group=ENTRY_POINT_GROUP))
    return {pipeline.name: pipeline for pipeline in found}


def pipeline(name: str) -> Pipeline[Any]:
    """Loads one pipeline from the registry; a dotted path is never accepted.

    Raises:
        JobRejected: no installed package offers it.
    """
    found = pipelines()
    if name not in found:
        raise JobRejected(
            "unknown-pipeline", "pipeline", f"{name!r} is not installed; known: {', '.join(sorted(found))}"
        )
    return found[name]
