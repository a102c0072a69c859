"""Errors of a job's code: where they arose, and whether two programming errors are the same.

A KeyError, TypeError or AttributeError at one record comes again at every attempt that reads the record again.
"""

import sysconfig
import traceback
from pathlib import Path
from typing import Final

from runtime.errors import OperatorFailure

KINDS: Final = (KeyError, TypeError, AttributeError)
_LIBRARIES: Final = (str(Path(__file__).parents[1]), sysconfig.get_paths()["stdlib"], "<")


def place_of(error: BaseException) -> str:
    """The line of the job's code and, in row-wise functions, the row. Empty for errors that no such code raised."""
    cause = error.__cause__
    if not isinstance(error, OperatorFailure) or cause is None:
        return ""
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not _is_library(frame.filename)]
    lines = [f"in {Path(frame.filename).name}, line {frame.lineno}" for frame in frames[-1:]]
    return ", ".join([*lines, *getattr(cause, "__notes__", ())])


def fingerprint(error: BaseException) -> str:
    """Equal for two failures of the same code at the same record, in whichever subtask; empty for other errors."""
    cause = error.__cause__
    if not isinstance(error, OperatorFailure) or not isinstance(cause, KINDS):
        return ""
    return f"{error.operator} {error.hook} {type(cause).__name__} {cause} {place_of(error)}"


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or file.endswith((".pyx", ".pxi")) or "site-packages" in file
