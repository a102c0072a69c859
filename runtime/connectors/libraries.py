"""Optional libraries of connectors. A missing library is an error that names the extra to install."""

from importlib import import_module
from typing import Any

from runtime.errors import JobRejected


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
    """How to install an extra: by path, since on the public package index another package has the name `weir`."""
    return f"on every host, run pip install '/path/to/weir[{extra}]' with the path of Weir's checkout"
