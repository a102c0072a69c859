"""Checks of the arguments that a job author passes to the builder. Each error names the operator and the argument.

Properties unknown before the start, such as the function that a factory makes, are checked when they become known.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from math import gcd
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate

_URL_PREFIX: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_MAX_PANES: Final = 10_000  #: per window: with more, the slide is most likely a mistake
_MILLISECOND: Final = timedelta(milliseconds=1)
MAX_WINDOW_LENGTH: Final = timedelta(days=36_525)  #: 100 years; 292 years and more exceed 64 bits in nanoseconds
_HOOK_NAMES: Final = (
    "open", "start", "process", "process1", "process2", "process_broadcast", "process_sorted", "on_watermark",
    "on_timer", "on_processing_time", "prepare_snapshot_pre_barrier", "snapshot", "checkpoint_completed",
    "checkpoint_aborted", "settle", "end_input", "finish", "close",
)  # fmt: skip


def argument_error(uid: str, argument: str, problem: str) -> JobRejected:
    """The error for an argument of an operator."""
    return JobRejected(f"bad-{argument.replace('_', '-')}", uid, f"{argument} {problem}")


def check_schema(uid: str, schema: object) -> None:
    """Raises JobRejected unless `schema` is a schema with distinct column names."""
    if not isinstance(schema, pa.Schema):
        raise argument_error(uid, "schema", f"must be a pyarrow.Schema, not {_type_name(schema)}")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise argument_error(uid, "schema", f"names the column {name!r} twice")


def check_column(uid: str, argument: str, name: object) -> None:
    """Raises JobRejected unless `name` can be a column name."""
    if not isinstance(name, str) or not name:
        raise argument_error(uid, argument, f"must be the name of a column, not {name!r} ({_type_name(name)})")


def check_columns(uid: str, argument: str, names: object) -> None:
    """Raises JobRejected unless `names` is a list of column names. A str is refused: it would iterate over letters."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise argument_error(uid, argument, f"must be a list of column names, not {names!r}")
    for name in names:
        check_column(uid, argument, name)


def check_aggregates(uid: str, aggregates: object) -> None:
    """Raises JobRejected unless `aggregates` maps output columns to aggregates."""
    if not isinstance(aggregates, Mapping):
        raise argument_error(uid, "aggregates", f"must be aggregates by output column, not {_type_name(aggregates)}")
    for name, aggregate in aggregates.items():
        check_column(uid, "aggregates", name)
        if not isinstance(aggregate, Aggregate):
            raise argument_error(
                uid, "aggregates", f"must hold aggregates such as Count(), but {name!r} is {aggregate!r}"
            )


def check_window(uid: str, size: timedelta, slide: timedelta | None) -> tuple[int, int]:
    """Size and slide in milliseconds; without a slide the windows are tumbling.

    Raises:
        JobRejected: `size` or `slide` is invalid, the slide exceeds the size, or a window has too many panes.
    """
    size_ms = _milliseconds(uid, "size", size)
    slide_ms = size_ms if slide is None else _milliseconds(uid, "slide", slide)
    if slide_ms > size_ms:
        detail = f"the slide of {slide_ms} ms is longer than the window of {size_ms} ms: rows in between would be lost"
        raise JobRejected("bad-window", uid, detail)
    panes = size_ms // gcd(size_ms, slide_ms)
    if panes > _MAX_PANES:
        detail = f"a slide of {slide_ms} ms cuts a window of {size_ms} ms into {panes} panes, more than {_MAX_PANES}"
        raise JobRejected("bad-window", uid, detail)
    return size_ms, slide_ms


def check_interval(uid: str, argument: str, length: object) -> int:
    """A bound of an interval in milliseconds; it may be negative. Raises JobRejected: it is invalid."""
    return _milliseconds(uid, argument, length, least=-MAX_WINDOW_LENGTH, code="bad-interval")


def check_gap(uid: str, gap: timedelta) -> int:
    """The gap of a session in milliseconds. Raises JobRejected: it is not positive, or no whole number of them."""
    return _milliseconds(uid, "gap", gap)


def check_within(uid: str, within: timedelta) -> int:
    """The length of a part of event time in milliseconds. Raises JobRejected as `check_gap`."""
    return _milliseconds(uid, "within", within)


def check_drift(uid: str, max_drift: timedelta) -> int:
    """The drift of a source in milliseconds. Raises JobRejected as `check_gap`."""
    return _milliseconds(uid, "max_drift", max_drift)


def check_expression(uid: str, argument: str, value: object) -> None:
    """Raises JobRejected unless `value` is an Arrow expression."""
    if not isinstance(value, pc.Expression):
        advice = "write pc.field(name) for a column and pc.scalar(value) for a constant (import pyarrow.compute as pc)"
        raise argument_error(uid, argument, f"must be an Arrow expression, not {value!r}: {advice}")


def check_parallelism(uid: str, parallelism: object) -> None:
    """Raises JobRejected unless `parallelism` is None or a positive integer."""
    if parallelism is not None and (type(parallelism) is not int or parallelism < 1):
        raise argument_error(uid, "parallelism", f"must be a whole number, at least 1, not {parallelism!r}")


def check_folder(uid: str, argument: str, path: object) -> None:
    """Raises JobRejected if the path would name an unintended local folder, such as "s3:" or "~"."""
    if str(path).startswith("~"):
        raise argument_error(uid, argument, f"{path}: ~ is not expanded; write the path of the home folder")
    if str(path).startswith("$"):
        raise argument_error(uid, argument, f"{path}: variables are not expanded; write the path that it stands for")
    if str(path) != str(path).strip():
        raise argument_error(uid, argument, f"{str(path)!r} begins or ends with white space")
    if _URL_PREFIX.match(str(path)):
        problem = f"{path} is a URL: connectors read and write folders of a file system that every host mounts"
        raise argument_error(uid, argument, problem)


def check_function(uid: str, function: object, *, asynchronous: bool = False, rows: bool = False) -> None:
    """Raises JobRejected unless the function is callable and its calls return what the operator needs.

    Args:
        asynchronous: the operator awaits the result.
        rows: the function may yield.
    """
    if not callable(function):
        raise argument_error(uid, "function", f"must be callable, not {_type_name(function)}")
    code = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(code) and not asynchronous:
        raise argument_error(uid, "function", f"{_function_name(function)} is async: use async_map for requests")
    if inspect.isasyncgenfunction(code) or (inspect.isgeneratorfunction(code) and not rows):
        raise argument_error(uid, "function", f"{_function_name(function)} uses yield: return the result instead")


def check_factory(
    uid: str, factory: object, base: type, advice: str = "", *, argument: str = "function_factory"
) -> None:
    """Raises JobRejected unless the factory makes objects of the class `base`. Only a class can be inspected.

    `advice` is appended to the error for a factory that is another class.
    """
    if not callable(factory) or isinstance(factory, base):
        product = argument.removesuffix("_factory")
        problem = f"must be a class, or a factory that makes one {product} per subtask, not an instance: {factory!r}"
        raise argument_error(uid, argument, problem)
    if isinstance(factory, type):
        if not issubclass(factory, base):
            raise argument_error(uid, argument, f"{factory.__name__} is not a subclass of {base.__name__}{advice}")
        check_hooks(uid, factory, argument=argument)


def check_hooks(uid: str, function: type, *, argument: str = "function_factory") -> None:
    """Raises JobRejected if a hook is missing or would never run.

    The body of a hook with `yield` or `async` runs only if its result is iterated or awaited, which no caller does.
    """
    missing = ", ".join(sorted(getattr(function, "__abstractmethods__", ())))
    if missing:
        raise argument_error(uid, argument, f"{function.__name__} lacks {missing}")
    for name in _HOOK_NAMES:
        hook: Callable[..., Any] | None = getattr(function, name, None)
        where = f"{function.__name__}.{name}"
        if inspect.isgeneratorfunction(hook):
            raise argument_error(uid, argument, f"{where} uses yield: its rows would be lost; emit with out.emit")
        if inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook):
            raise argument_error(uid, argument, f"{where} is async: it would never run; use async_map for requests")


def _milliseconds(
    uid: str, argument: str, length: object, least: timedelta = _MILLISECOND, code: str = "bad-window"
) -> int:
    if not isinstance(length, timedelta):
        raise JobRejected(code, uid, f"{argument} must be a timedelta, not {type(length).__name__}")
    if length % _MILLISECOND:
        raise JobRejected(code, uid, f"{argument} must be a whole number of milliseconds, not {length}")
    if length < least:
        limit = "1 ms" if least == _MILLISECOND else f"{least.days} days"
        raise JobRejected(code, uid, f"{argument} must be at least {limit}, not {length}")
    if length > MAX_WINDOW_LENGTH:
        raise JobRejected(code, uid, f"{argument} must be at most {MAX_WINDOW_LENGTH.days} days, not {length}")
    return length // _MILLISECOND


def _type_name(value: object) -> str:
    return type(value).__name__


def _function_name(function: object) -> str:
    return getattr(function, "__name__", repr(function))
