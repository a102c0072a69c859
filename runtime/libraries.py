"""The distribution of Weir, and libraries of its extras. A missing library is an error that names the extra."""

from importlib import import_module
from typing import Any, Final

from runtime.errors import JobRejected

#: The name that pip knows. On the public index another distribution has the name `weir`.
DISTRIBUTION: Final = "weir-streams"


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
        problem = f"needs the library {package}, an extra of Weir: {installation_of(extra)}"
        raise JobRejected("missing-library", extra, problem) from error


def installation_of(extra: str) -> str:
    """How to install an extra."""
    return f"on every host, run pip install '{DISTRIBUTION}[{extra}]'"
