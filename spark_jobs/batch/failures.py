"""Errors of tasks. Each names the operator at fault, as in STREAMING, and keeps its type on its way to the driver.

Spark passes on only the text of an exception, so an error leaves its task as JSON (`TaskError`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from runtime.access.redaction import redact
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, OperatorFailure, WeirError
from runtime.io.logs import escape
from runtime.slot.programming_errors import describe_error
from spark_jobs.session import first_line


class TaskFailure(WeirError):
    """An operator, source or sink failed. The message names it and, for errors of an author's code, their place."""

    def __init__(self, operator: str, message: str) -> None:
        super().__init__(message)
        self.operator = operator


class RowsRejected(TaskFailure, DataRejected):
    """An operator, source or sink cannot take a row."""


class ResourceFailure(TaskFailure, EnvironmentFailure):
    """Storage, network or a system that a connector uses failed."""


class StepRefused(JobRejected):
    """A job that BATCH refuses while it runs. `field` is the operator."""


_TYPES: Final = {each.__name__: each for each in (TaskFailure, RowsRejected, ResourceFailure)}


def call_hook(operator: str, index: int | None, hook: str, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a hook of an operator, source or sink. `index`: its subtask; None: the driver calls the hook.

    Raises:
        TaskFailure, StepRefused: the hook raised an error of Weir, which now names the operator.
        OperatorFailure: the hook raised another error.
    """
    try:
        return function(*args)
    except (TaskFailure, StepRefused, OperatorFailure):
        raise  # of an operator behind this one, which is named
    except JobRejected as error:
        detail = error.detail if error.field == operator else str(error)
        raise StepRefused(error.code, operator, detail) from error
    except WeirError as error:
        text, name = str(error), f"operator {operator!r}"
        raise _type_of(error)(operator, text if name in text else f"{name}: {text}") from error
    except (Exception, SystemExit) as error:  # an author's `sys.exit` must be reported
        raise OperatorFailure(operator, index, hook, error) from error


def _type_of(error: WeirError) -> type[TaskFailure]:
    if isinstance(error, DataRejected):
        return RowsRejected
    return ResourceFailure if isinstance(error, EnvironmentFailure) else TaskFailure


# ---------------------------------------------------------------- between task and driver


class TaskError(Exception):
    """An error of a task as JSON: type, code of a refusal or "", operator, message."""

    def __init__(self, kind: str, code: str, operator: str, message: str) -> None:
        super().__init__(msgspec.json.encode([kind, code, operator, escape(redact(message))]).decode())


_PATTERN: Final = re.compile(r"TaskError: (\[.*\])")


@contextmanager
def errors_for_spark() -> Iterator[None]:
    """Context of a task. Raises TaskError in place of each error of Weir."""
    try:
        yield
    except JobRejected as error:
        raise TaskError(JobRejected.__name__, error.code, error.field, error.detail) from None  # Spark logs a cause
    except OperatorFailure as error:
        raise TaskError(TaskFailure.__name__, "", error.operator, describe_error(error)) from None
    except WeirError as error:
        operator = error.operator if isinstance(error, TaskFailure) else ""
        raise TaskError(_type_of(error).__name__, "", operator, str(error)) from None


@contextmanager
def typed_task_errors() -> Iterator[None]:
    """Context of a Spark action. Raises WeirError in place of Spark's exception: the typed error of the task."""
    try:
        yield
    except WeirError:
        raise
    except Exception as error:
        raise _typed(error) from error


def _typed(error: Exception) -> WeirError:
    """The error of the last failed task, from the text of Spark's exception."""
    texts = _PATTERN.findall(str(error))
    if not texts:
        return WeirError(first_line(error))
    try:
        kind, code, operator, message = msgspec.json.decode(texts[-1], type=tuple[str, str, str, str])
    except msgspec.DecodeError:  # an author's error that looks like one
        return WeirError(first_line(error))
    return StepRefused(code, operator, message) if kind == JobRejected.__name__ else _TYPES[kind](operator, message)
