"""Paths and turns in a recorded trace.

A path is found backwards, from the call that ends it. Within a thread, the path follows the calls that carry a mark.
At a get from a queue, the path goes on at the matching put, if a call that was open at the put carries a mark.
At a read of a socket, the path goes on at another thread's newest call with the same bytes, or else with a mark.
If no earlier call of a thread carries a mark, the path follows the newest get: a wake-up without contents.

- A hop is a call through which the item came: its result carries a mark, or it is open at the next handover. A
  caller of a hop is a hop too, if it was entered since the path began. A call that only reads the item is no hop.
  Repeated calls of a function by the same caller count once between two handovers, so loops over columns add none.
- A handover is a queue, a socket, a channel or the database between two hops.
- Files are the modules of the functions.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.trace.recorder import Event, Function, Kind, Mark, Trace

_MIN_BYTES: Final = 8  #: shorter byte strings may be equal by chance


@dataclass(frozen=True, slots=True)
class Path:
    """`segments`: the hops between two handovers, each with its thread."""

    segments: tuple[tuple[str, tuple[Function, ...]], ...]

    @property
    def hops(self) -> int:
        return sum(len(functions) for _, functions in self.segments)

    @property
    def files(self) -> int:
        return len({module for _, functions in self.segments for module, _ in functions})

    @property
    def handovers(self) -> int:
        return max(0, len(self.segments) - 1)

    @property
    def threads(self) -> frozenset[str]:
        return frozenset(thread for thread, _ in self.segments)

    def __add__(self, other: "Path") -> "Path":
        return Path(self.segments + other.segments)


def find(
    trace: Trace, end: int, marks: Collection[Mark], begin: int | None = None, since: int | None = None
) -> Path | None:
    """The path from the call `begin` to the event `end`; None: no path back from `end` reaches `begin`.

    If no argument of `begin` carries a mark, the path starts at its result. Without `begin`, the path starts at the
    first mark. Callers of a hop are counted if they were entered at the event `since` or later (None: first mark).
    """
    wanted = frozenset(marks)
    kind = Kind.CALL if begin is not None and trace.calls[begin].marks & wanted else Kind.RETURN
    marked = [trace.by_mark[mark][0] for mark in wanted if mark in trace.by_mark]
    first = min(marked) if since is None else since
    segments: list[list[int]] = [[]]
    at: int | None = end
    while at is not None:
        call = trace.events[at].call
        if call >= 0 and (trace.events[at].kind is not Kind.CALL or not segments[-1] or call == begin):
            segments[-1].append(call)
        if begin is not None and call == begin and trace.events[at].kind is kind:
            break
        at, crossed = _before(trace, at, wanted, first)
        if crossed and at is not None:
            segments.append([])
    return None if begin is not None and at is None else _path(trace, segments[::-1], first)


def _before(trace: Trace, at: int, wanted: frozenset[Mark], first: int) -> tuple[int | None, bool]:
    """The predecessor of event `at` on the path, and whether a handover lies between the two events."""
    here, newest_put, began = trace.events[at], None, at
    for index in range(at - 1, first - 1, -1):
        event = trace.events[index]
        if event.thread != here.thread:
            continue
        if event.marks & wanted:
            return index, False
        put = trace.puts.get(event.item) if event.kind is Kind.GET else None
        if put is not None and _carries_mark(trace, trace.events[put].call, wanted):
            return put, True
        if put is not None and newest_put is None and put >= first:
            newest_put = put
        if event.kind is Kind.RECEIVE:
            newest_put, began = None, index
            break
    return (_elsewhere(trace, here, began, wanted, first) if newest_put is None else newest_put), True


def _carries_mark(trace: Trace, call: int, wanted: frozenset[Mark]) -> bool:
    """Whether the call, or a direct or indirect caller of it, has a mark in its arguments."""
    while call >= 0:
        if trace.calls[call].marks & wanted:
            return True
        call = trace.calls[call].parent
    return False


def _elsewhere(trace: Trace, here: Event, began: int, wanted: frozenset[Mark], first: int) -> int | None:
    """The newest event of another thread, before `began`, with the same bytes, or else with a mark."""
    newest = None
    for index in range(began - 1, first - 1, -1):
        event = trace.events[index]
        if event.thread == here.thread:
            continue
        if any(len(mine) >= _MIN_BYTES and mine in theirs for mine in here.frames for theirs in event.frames):
            return index
        if newest is None and event.marks & wanted:
            newest = index
    return newest


def _path(trace: Trace, segments: Sequence[Sequence[int]], first: int) -> Path:
    counted: set[int] = set()
    found = []
    for visited in segments:
        around = {outer for call in visited for outer in _around(trace, call, first)} - counted
        counted |= around
        edges = {_edge(trace, call): trace.calls[call].function for call in sorted(around)}
        threads = [trace.threads[trace.calls[call].thread] for call in visited[:1]]
        if threads:
            found.append((threads[0], tuple(edges.values())))
    return Path(tuple(found))


def _around(trace: Trace, call: int, first: int) -> list[int]:
    """The call, and its direct and indirect callers that were entered since the event `first`."""
    found = [call]
    while (call := trace.calls[call].parent) >= 0 and trace.calls[call].event >= first:
        found.append(call)
    return found


def _edge(trace: Trace, call: int) -> tuple[Function | None, Function]:
    made = trace.calls[call]
    return (None if made.parent < 0 else trace.calls[made.parent].function), made.function


# ---------------------------------------------------------------- turns


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a slot: the number of calls of project functions, and of the modules (`files`) that they are in."""

    calls: int
    files: int


def turns(trace: Trace, step: Function, forwards: Function) -> dict[str, list[Turn]]:
    """By thread, the turns of the thread's slot in which `forwards` was called. `step` is a subtask's part of a turn.

    A turn ends with the step of the slot's last subtask, in the order of their first steps.
    """
    found = {}
    for thread, name in trace.threads.items():
        own = [event for event in trace.events if event.thread == thread and event.kind in (Kind.CALL, Kind.RETURN)]
        owners = dict.fromkeys(made.owner for event in own if (made := trace.calls[event.call]).function == step)
        if owners:
            found[name] = _turns(trace, own, step, list(owners)[-1], forwards)
    return found


def _turns(trace: Trace, own: Sequence[Event], step: Function, last: int, forwards: Function) -> list[Turn]:
    found: list[Turn] = []
    called: list[Function] = []
    for event in own:
        made = trace.calls[event.call]
        if event.kind is Kind.CALL:
            called.append(made.function)
        elif made.function == step and made.owner == last:
            if forwards in called:
                found.append(Turn(len(called), len({module for module, _ in called})))
            called = []
    return found


def steps(trace: Trace, step: Function, forwards: Function) -> list[Turn]:
    """Every step of a subtask in which `forwards` was called: the subtask's own part of a turn."""
    inside: dict[int, int] = {}  #: call -> the step in which it was made; -1: none
    called: dict[int, list[Function]] = {}
    for index, call in enumerate(trace.calls):
        inside[index] = index if call.function == step else inside.get(call.parent, -1)
        called.setdefault(inside[index], []).append(call.function)
    called.pop(-1, None)
    return [Turn(len(own), len({module for module, _ in own})) for own in called.values() if forwards in own]
