"""The distribution of Weir, and libraries of its extras. A missing library is an error that names the extra."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from runtime.errors import JobRejected

#: The name that pip knows. On the public index another distribution has the name `weir`.
DISTRIBUTION: Final = "weir-streams"
#: Libraries that modules of Weir import at their top -> their extra.
_EXTRAS: Final = {"psycopg": "postgres", "pyspark": "spark"}


def import_library(module: str, extra: str) -> Any:
    """The module `module`, which the extra `extra` of Weir installs.

    Raises:
        JobRejected: the library is not installed on this host.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the library is there and misses one of its own dependencies
        raise _missing(package, extra) from error


def require_library(package: str, extra: str) -> None:
    """Raises JobRejected if the package is not installed on this host. Imports nothing."""
    if find_spec(package) is None:
        raise _missing(package, extra)


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
        raise _missing(package, _EXTRAS[package]) from error


def _missing(package: str, extra: str) -> JobRejected:
    advice = f"on every host, run pip install '{DISTRIBUTION}[{extra}]'"
    return JobRejected("missing-library", extra, f"needs the library {package}, an extra of Weir: {advice}")
