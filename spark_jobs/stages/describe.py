"""Describes an unpacked package, in a process that imports the job from exactly its files.

The author's command line and the console both ask for a description before they accept a package. The console imports
no code of a package: it takes pipelines and schemas of parameters from the description.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, Final

from runtime.access.job_package import import_from
from runtime.access.package_checks import package_distributions
from runtime.dataflow.pipelines import Pipeline, offered_points, parameter_schema, registry
from runtime.errors import JobRejected
from runtime.libraries import installed_versions

MAX_TRACEBACK_CHARACTERS: Final = 4_000


def describe_package(folder: Path) -> dict[str, Any]:
    """Pipelines, versions and distributions of the package in `folder`.

    Raises:
        JobRejected: the package replaces a part of Weir or of its libraries, or its code cannot be imported; the detail
            has the traceback.
    """
    import_from(folder)
    distributions = package_distributions(folder)
    return {"pipelines": _pipelines(), "versions": installed_versions(), "distributions": distributions}


def _pipelines() -> list[dict[str, Any]]:
    points = offered_points()
    if not points:
        raise JobRejected("broken-package", "package", "it has no entry point in the group weir.pipelines")
    for point in points:
        try:
            point.load()
        except (Exception, SystemExit) as error:
            text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARACTERS:].strip()
            detail = f"the entry point {point.name} = {point.value} cannot be imported:\n{text}"
            raise JobRejected("broken-package", "package", detail) from error
    catalog = registry()
    for reason in catalog.broken.values():
        raise JobRejected("broken-package", "package", reason)
    return [_description(each) for _, each in sorted(catalog.pipelines.items())]


def _description(pipeline: Pipeline[Any]) -> dict[str, Any]:
    return {
        "name": pipeline.name,
        "description": pipeline.description,
        "schema": parameter_schema(pipeline),
        "queries": dict(pipeline.queries),
    }
