"""Errors of a job's code: their location, and whether two programming errors are the same.

A KeyError, TypeError or AttributeError at a record recurs at every attempt that reads the record again.
"""

import sysconfig
import traceback
from pathlib import Path
from typing import Final

from runtime.access.redaction import redact
from runtime.errors import OperatorFailure

PROGRAMMING_ERRORS: Final = (KeyError, TypeError, AttributeError)
_RUNTIME_FOLDER: Final = str(Path(__file__).parents[1])
_STDLIB_PREFIXES: Final = (sysconfig.get_paths()["stdlib"], "<")


def location_of(error: BaseException) -> str:
    """Line of the job's code and, in row-wise functions, the row. Empty for errors of other origin.

    The job's code is the package that was called: lines of the libraries that it calls explain less.
    """
    cause = error.__cause__
    if not isinstance(error, OperatorFailure) or cause is None:
        return ""
    inside = traceback.extract_tb(cause.__traceback__)[1:]  # the first frame called the hook
    frames = [frame for frame in inside if not _is_library(frame.filename)]
    job_frames = [frame for frame in frames if _package(frame.filename) == _package(frames[0].filename)]
    lines = [f"in {Path(frame.filename).name}, line {frame.lineno}" for frame in job_frames[-1:]]
    return ", ".join([*lines, *getattr(cause, "__notes__", ())])


def describe_error(error: Exception) -> str:
    """Error text with the location in the job's code, if known, and without resolved secrets."""
    text, place = str(error) or type(error).__name__, location_of(error)
    return redact(f"{text} ({place})" if place else text)


def fingerprint(error: BaseException) -> str:
    """Text that is equal for failures of the same code at the same record, in any subtask; empty for other errors."""
    cause = error.__cause__
    if not isinstance(error, OperatorFailure) or not isinstance(cause, PROGRAMMING_ERRORS):
        return ""
    return redact(f"{error.operator} {error.hook} {type(cause).__name__} {cause} {location_of(error)}")


def _is_library(file: str) -> bool:
    if file.startswith(_RUNTIME_FOLDER) or file.endswith((".pyx", ".pxi")):
        return True
    return not _package(file) and file.startswith(_STDLIB_PREFIXES)


def _package(file: str) -> str:
    """Installed package that `file` belongs to; empty for code that is not installed, such as a program."""
    _, installed, inside = file.rpartition("/site-packages/")
    return inside.partition("/")[0] if installed else ""
