"""Describes an unpacked package, in a process that imports the job from exactly its files.

The author's command line and the console both ask for a description before they accept a package. The console imports
no code of a package: it takes pipelines and schemas of parameters from the description.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from typing import Any, Final

import msgspec

from runtime.access.data_roots import DataRoots
from runtime.access.job_package import import_from
from runtime.core.job.key_groups import DEFAULT_MAX_PARALLELISM
from runtime.dataflow.code_identity import code_identity
from runtime.dataflow.pipelines import Pipeline, PipelineContext, offered_points, parameter_schema, registry
from runtime.errors import JobRejected
from runtime.libraries import PACKAGE_VERSIONS_FILE, base_versions, installed_versions, normal_name

MAX_TRACEBACK_CHARACTERS: Final = 4_000


def describe_package(folder: Path) -> dict[str, Any]:
    """Pipelines, versions and distributions of the package in `folder`.

    Raises:
        JobRejected: the package replaces a part of Weir or of its libraries, or its code cannot be imported; the detail
            has the traceback.
    """
    brought = {normal_name(each.name): each.version for each in distributions(path=[str(folder)])}
    base = base_versions()
    _check_versions(folder)
    _check_distributions(brought, base)
    _check_modules(folder, base)
    import_from(folder)
    return {"pipelines": _pipelines(), "versions": installed_versions(), "distributions": brought}


def _check_versions(folder: Path) -> None:
    """Raises JobRejected for a package that was built for other versions of Weir, Python or Arrow."""
    try:
        versions = msgspec.json.decode((folder / PACKAGE_VERSIONS_FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise JobRejected("bad-package", "package", "`weir package` has not made it") from error
    for name, version in installed_versions().items():
        if versions.get(name) != version:
            detail = f"it was built for {name} {versions.get(name)}, and {name} {version} runs here: build it anew"
            raise JobRejected("package-conflict", "package", detail)


def _check_distributions(brought: dict[str, str], base: dict[str, str]) -> None:
    """Raises JobRejected for a distribution that the hosts have beside Weir: a process would import either."""
    for name in sorted(brought.keys() & base.keys()):
        detail = f"it brings {name} {brought[name]}, and {name} {base[name]} is installed with Weir: build it anew"
        raise JobRejected("package-conflict", "package", detail)


def _check_modules(folder: Path, base: dict[str, str]) -> None:
    """Raises JobRejected for a module with the name of a module of Python, of Weir or of its libraries."""
    of_base = {name for name, owners in packages_distributions().items() if base.keys() & set(map(normal_name, owners))}
    taken = of_base | sys.stdlib_module_names
    for entry in sorted(folder.iterdir()):
        name = entry.name.partition(".")[0]
        is_module = (entry / "__init__.py").is_file() or entry.suffix in (".py", ".so")
        if is_module and name in taken:
            detail = f"its module {name} has the name of a module of Python, Weir or its libraries: rename it"
            raise JobRejected("package-conflict", "package", detail)


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
        "graph": _default_graph(pipeline),
    }


def _default_graph(pipeline: Pipeline[Any]) -> str:
    """The digest of the graph with the defaults of all parameters; "" if the pipeline needs others."""
    try:
        flow = pipeline.dataflow({}, PipelineContext("", DataRoots.of_environment(os.environ)))
        return code_identity(pipeline.name, flow, DEFAULT_MAX_PARALLELISM).graph
    except Exception:  # noqa: BLE001 - code of the author; the compilation of a version reports it
        return ""
