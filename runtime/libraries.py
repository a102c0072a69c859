"""The distribution of Weir, libraries of its extras, and Java. An error names the extra or program to install."""

import os
import platform
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, Final

from runtime.errors import EnvironmentFailure, JobRejected

#: The name that pip knows. On the public index another distribution has the name `weir`.
DISTRIBUTION: Final = "weir-streams"
#: File in a package with the `installed_versions` for which it was built.
PACKAGE_VERSIONS_FILE: Final = "weir-package.json"
#: Libraries that modules of Weir import at their top -> their extra.
_EXTRAS: Final = {"psycopg": "postgres", "pyspark": "spark"}
#: Two threads that import modules of a package with cycles at a time may find one that is not complete.
_IMPORTING: Final = threading.RLock()
_JVM_EXITED: Final = "JAVA_GATEWAY_EXITED"  #: PySpark's code if there is no Java, or an old one
_JAVA_NEEDED: Final = (
    "Spark needs Java 17 or newer. Install it: apt-get install default-jre-headless (or set JAVA_HOME)"
)
#: Also a host name that does not resolve ends Spark's JVM at its start.
_JVM_ENDED: Final = (
    "Spark's JVM ended at its start; the first error in its output names the cause (it needs Java 17 or newer)"
)


@cache
def installed_versions() -> Mapping[str, str]:
    """The versions of Weir, Python and Arrow of this process; "": unknown, as in a checkout."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Weir": _version_of(DISTRIBUTION), "Python": python, "Arrow": _version_of("pyarrow")}


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def base_versions() -> dict[str, str]:
    """The versions of Weir and of the libraries that it needs, with those of all its installed extras, by name.

    A host may have further distributions, such as tools and packages of pipelines.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    versions: dict[str, str] = {}
    waiting = [(DISTRIBUTION, frozenset(metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ()))]
    done = set[tuple[str, frozenset[str]]]()
    while waiting:
        name, extras = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of an extra that is not installed
            continue
        versions[canonicalize_name(name)] = distribution.version
        for text in distribution.requires or ():
            required = Requirement(text)
            key = required.name, frozenset(required.extras)
            marker = required.marker
            if key not in done and (marker is None or any(marker.evaluate({"extra": e}) for e in ("", *extras))):
                done.add(key)
                waiting.append(key)
    return versions


def import_library(module: str, extra: str) -> Any:
    """The module `module`, which the extra `extra` of Weir installs.

    Raises:
        JobRejected: the library is not installed on this host.
    """
    package = module.partition(".")[0]
    try:
        with _IMPORTING:
            return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the library is there and misses one of its own dependencies
        raise _missing({package: extra}) from error


def require_libraries(extras: Mapping[str, str]) -> None:
    """Raises JobRejected for all libraries of `extras` (library -> extra) that this host lacks. Imports nothing."""
    if missing := {package: extra for package, extra in extras.items() if find_spec(package) is None}:
        raise _missing(missing)


def import_part(module: str) -> Any:
    """A module of Weir that imports the library of an extra.

    Raises:
        JobRejected: the library is not installed on this host.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise _missing({package: _EXTRAS[package]}) from error


@contextmanager
def jvm_start() -> Iterator[None]:
    """Around the start of Spark's JVM. Raises EnvironmentFailure, which names the Java to install, if the JVM exits."""
    try:
        yield
    except Exception as error:
        if _JVM_EXITED not in str(error):
            raise
        has_java = bool(shutil.which("java") or os.environ.get("JAVA_HOME"))
        raise EnvironmentFailure(_JVM_ENDED if has_java else _JAVA_NEEDED) from error


def _missing(libraries: Mapping[str, str]) -> JobRejected:
    extras = ",".join(sorted(set(libraries.values())))
    noun = "the library" if len(libraries) == 1 else "the libraries"
    advice = f"on every host, run pip install '{DISTRIBUTION}[{extras}]'"
    detail = f"needs {noun} {', '.join(libraries)}: {advice}"
    return JobRejected("missing-library", extras, detail)
