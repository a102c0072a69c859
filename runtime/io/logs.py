"""Logs of masters and slots: JSON lines on stderr, which the parent process captures."""

import logging
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from runtime.access.redaction import redact, redact_json

MAX_TRACE_CHARACTERS: Final = 8_000
_APPLICATION: Final = re.compile(r"app-\d+")  #: folders that Spark's standalone workers make


def escape(text: str) -> str:
    """Escapes characters that cannot be encoded, such as undecodable bytes of a file name that an exception quotes."""
    return text.encode(errors="backslashreplace").decode()


def traceback_text(error: BaseException) -> str:
    """End of the traceback as text, without local variables and resolved secrets.

    With `rich` installed, an unconfigured structlog renders every local variable of every frame. In a slot these
    variables are batches and whole states: rendering takes tens of seconds.
    """
    return redact("".join(traceback.format_exception(error)))[-MAX_TRACE_CHARACTERS:]


def executor_id() -> str:
    """Spark's id of the executor that started this process; "" outside a standalone cluster."""
    folder = Path.cwd()
    return folder.name if _APPLICATION.match(folder.parent.name) else ""


def log_path() -> str:
    """File that receives this process's stderr; "" if it is not a file.

    An executor of a standalone cluster copies the stderr of its Python workers into a file of its own folder.
    """
    copied = Path.cwd() / "stderr"
    if executor_id() and copied.is_file():
        return str(copied)
    target = Path("/proc/self/fd/2").resolve()
    return str(target) if target.is_file() else ""


def configure(redact: Callable[[Any], Any] = redact_json) -> None:
    """Configures logging. Idempotent: Spark reuses its workers, and a master learns its secrets after its first lines.

    Args:
        redact: removes secrets from an event, which is JSON. By default, those that the process has resolved.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            lambda logger, name, event: redact(event),
            structlog.processors.JSONRenderer(default=repr),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
