"""Records the calls of the project's functions in every thread, and which of them hold a marked item.

An item is marked by a number or text that occurs nowhere else: a checkpoint id, a row's key, the id of an operation.
A call carries a mark if an argument or its result contains it. Puts into and gets from queues are recorded too, as are
reads from sockets: the item changes threads there. `sys.setprofile` is used, since the project supports Python 3.11.
"""

import gc
import re
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, auto
from functools import cached_property, partial
from io import BufferedReader
from itertools import islice
from pathlib import PurePath
from queue import SimpleQueue
from types import CodeType, FrameType, FunctionType
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa

PACKAGES: Final = frozenset({"runtime", "console", "spark_jobs", "weir"})
CHECKPOINTS: Final = range(0x5EED_0000, 0x5EED_1000)  #: ids of traced checkpoints: four bytes in msgpack
VALUES: Final = range(7_700_000_000_000, 7_700_000_001_000)
REASON: Final = "trace-of-a-savepoint"
#: Checkpoint ids in names of committed files (not of state files, which later checkpoints name too), reasons, UUIDs.
_TEXT: Final = re.compile(
    rf"(?<=-)159259\d{{4}}(?=-\d+\.parquet)|{REASON}-\d+|[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"
)
_BYTES: Final = re.compile(rb"\x5e\xed[\x00-\x0f].", re.DOTALL)
_MAX_DEPTH: Final = 7
_MAX_ITEMS: Final = 64

Mark = int | str
Function = tuple[str, str]  #: module and qualified name


class Kind(Enum):
    CALL = auto()
    RETURN = auto()
    PUT = auto()
    GET = auto()
    RECEIVE = auto()  #: from a socket


@dataclass(frozen=True, slots=True)
class Event:
    kind: Kind
    thread: int
    call: int  #: index of the innermost call of the project; -1: none
    marks: frozenset[Mark] = frozenset()
    frames: tuple[bytes, ...] = ()  #: bytes among the arguments or in the result
    item: tuple[int, int] = (0, 0)  #: queue and number of the item, of PUT and GET


@dataclass(frozen=True, slots=True)
class Call:
    function: Function
    thread: int
    parent: int  #: index of the calling project function; -1: none
    event: int  #: index of its CALL
    marks: frozenset[Mark] = frozenset()  #: in its arguments
    owner: int = 0  #: identity of `self`


@dataclass
class Trace:
    """The recorded events and calls. Derived tables are computed once, when the trace is complete."""

    events: list[Event] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)

    @cached_property
    def puts(self) -> dict[tuple[int, int], int]:
        return {event.item: index for index, event in enumerate(self.events) if event.kind is Kind.PUT}

    @cached_property
    def by_mark(self) -> dict[Mark, list[int]]:
        """The events that carry each mark, in order."""
        found: dict[Mark, list[int]] = {}
        for index, event in enumerate(self.events):
            for mark in event.marks:
                found.setdefault(mark, []).append(index)
        return found


class _Thread(threading.local):
    def __init__(self) -> None:
        self.number = -1
        self.stack: list[tuple[FrameType, int]] = []


class Recorder:
    """Call `install` before the threads to be traced start; a thread that Python did not start calls `adopt`.

    Garbage is not collected meanwhile: a collection visits all that was recorded, so each would take longer.
    """

    def __init__(self, packages: Iterable[str] = PACKAGES) -> None:
        self.trace = Trace()
        self._packages = frozenset(packages)
        self._thread, self._lock = _Thread(), threading.Lock()
        self._traced: list[threading.Thread] = []
        self._queues: dict[int, tuple[Any, list[int]]] = {}  #: holds the queue: its identity must not be reused
        self._known: dict[CodeType, Function | None] = {}

    def install(self) -> None:
        gc.disable()
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def uninstall(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)
        gc.enable()
        self.trace.threads = {number: thread.name for number, thread in enumerate(self._traced)}

    def adopt(self) -> None:
        if sys.getprofile() is None:
            sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self._on_call(frame)
        elif event == "return":
            self._on_return(frame, arg)
        elif event == "c_call" and type(arg.__self__) in (SimpleQueue, deque) and arg.__name__ in ("put", "append"):
            self._note(Kind.PUT, item=self._number(arg.__self__, 0))
        elif event == "c_return" and type(arg.__self__) in (SimpleQueue, deque) and arg.__name__ in ("get", "popleft"):
            self._note(Kind.GET, item=self._number(arg.__self__, 1))
        elif event == "c_return" and arg.__name__ == "read" and _is_of_a_socket(arg.__self__):
            self._note(Kind.RECEIVE)

    def _number(self, queue: Any, side: int) -> tuple[int, int]:
        with self._lock:
            counts = self._queues.setdefault(id(queue), (queue, [0, 0]))[1]
            counts[side] += 1
            return id(queue), counts[side]

    def _function(self, frame: FrameType) -> Function | None:
        code = frame.f_code
        if code not in self._known:
            module = str(frame.f_globals.get("__name__", ""))
            ours = module.partition(".")[0] in self._packages or module in self._packages
            named = not code.co_name.startswith("<") or code.co_name == "<lambda>"
            self._known[code] = (module, code.co_qualname) if ours and named else None
        return self._known[code]

    def _on_call(self, frame: FrameType) -> None:
        function = self._function(frame)
        if function is None:
            return
        code, here = frame.f_code, self._here()
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        has_owner = bool(names) and names[0] in ("self", "cls")
        marks, frames = marks_in(frame.f_locals.get(name) for name in names[has_owner:])
        parent = here.stack[-1][1] if here.stack else -1
        owner = id(frame.f_locals.get("self")) if has_owner else 0
        with self._lock:
            index = len(self.trace.calls)
            self.trace.calls.append(Call(function, here.number, parent, len(self.trace.events), marks, owner))
            self.trace.events.append(Event(Kind.CALL, here.number, index, marks, frames))
        here.stack.append((frame, index))

    def _on_return(self, frame: FrameType, result: Any) -> None:
        stack = self._thread.stack
        if stack and stack[-1][0] is frame:
            marks, frames = marks_in([result])
            self._note(Kind.RETURN, marks, frames)
            stack.pop()

    def _note(
        self,
        kind: Kind,
        marks: frozenset[Mark] = frozenset(),
        frames: tuple[bytes, ...] = (),
        item: tuple[int, int] = (0, 0),
    ) -> None:
        here = self._here()
        call = here.stack[-1][1] if here.stack else -1
        with self._lock:
            self.trace.events.append(Event(kind, here.number, call, marks, frames, item))

    def _here(self) -> _Thread:
        here = self._thread
        if here.number < 0:
            with self._lock:
                here.number = len(self._traced)
                self._traced.append(threading.current_thread())
        return here


def _is_of_a_socket(stream: Any) -> bool:
    return type(stream) is BufferedReader and isinstance(stream.raw, socket.SocketIO)


def marks_in(values: Iterable[Any]) -> tuple[frozenset[Mark], tuple[bytes, ...]]:
    """The marks that the values contain, and the bytes among the values."""
    found: set[Mark] = set()
    frames = []
    for value in values:
        _scan(value, found, 0)
        if type(value) is bytes:
            frames.append(value)
    return frozenset(found), tuple(frames)


def _scan(value: Any, found: set[Mark], depth: int) -> None:
    if type(value) is int:
        if value in CHECKPOINTS or value in VALUES:
            found.add(value)
    elif isinstance(value, str | PurePath | UUID):
        found.update(int(text) if text.isdigit() else text for text in _TEXT.findall(str(value)))
    elif isinstance(value, bytes):
        found.update(int.from_bytes(match) for match in _BYTES.findall(value))
    elif depth < _MAX_DEPTH:
        for part in islice(_parts(value), _MAX_ITEMS):
            _scan(part, found, depth + 1)


def _result(future: Future[Any]) -> list[Any]:
    return [future.result()] if future.done() and not future.cancelled() and not future.exception() else []


_CONTAINERS: Final[dict[type, Callable[[Any], Iterable[Any]]]] = {
    partial: lambda value: [*value.args, *value.keywords.values()],
    FunctionType: lambda value: [cell.cell_contents for cell in value.__closure__ or ()],
    Future: _result,
    pa.RecordBatch: lambda value: [item for column in value.columns for item in _numbers(column)],
}


def _parts(value: Any) -> Iterable[Any]:
    """The parts of a container, frozen object, Django row or API answer. Others have none: they keep all past items."""
    parts = _CONTAINERS.get(type(value))
    if parts is not None:
        return parts(value)
    if isinstance(value, dict):
        return [*islice(value, _MAX_ITEMS // 2), *islice(value.values(), _MAX_ITEMS // 2)]
    if isinstance(value, tuple | list | set | frozenset | deque):
        return list(value)
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return [getattr(value, item.name, None) for item in fields(value)]
    if hasattr(type(value), "_meta"):  # a row of Django
        return list(vars(value).values())
    return [value.data] if hasattr(value, "status_code") and hasattr(value, "data") else ()  # an answer of the API


def _numbers(column: pa.Array) -> list[Any]:
    return list(column[:_MAX_ITEMS].to_pylist()) if pa.types.is_int64(column.type) else []
