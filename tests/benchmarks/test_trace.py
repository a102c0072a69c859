"""Counting hops, handovers and turns of a recorded trace."""

import os
import queue
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field

import pytest

from benchmarks.trace.__main__ import overruns
from benchmarks.trace.budget import BARRIER, FORWARDING, MAX_CALLS, MAX_HANDOVERS, MAX_HOPS
from benchmarks.trace.paths import Path, Turn, find, steps, turns
from benchmarks.trace.recorder import CHECKPOINTS, Call, Event, Kind, Mark, Recorder, Trace
from benchmarks.trace.table import list_hops, middle, table

MARK = CHECKPOINTS[1]


@dataclass
class Written:
    """A trace that is written by hand. Functions are named `module.function`."""

    trace: Trace = field(default_factory=lambda: Trace(threads={0: "first", 1: "second"}))
    stacks: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: []})

    def call(self, name: str, mark: Mark | None = None, thread: int = 0, owner: int = 0) -> None:
        module, _, function = name.partition(".")
        stack, marks = self.stacks[thread], frozenset[Mark]() if mark is None else frozenset({mark})
        parent = stack[-1] if stack else -1
        stack.append(len(self.trace.calls))
        self.trace.calls.append(Call((module, function), thread, parent, len(self.trace.events), marks, owner))
        self._event(Kind.CALL, thread, marks)

    def back(self, mark: Mark | None = None, thread: int = 0, frames: tuple[bytes, ...] = ()) -> None:
        self._event(Kind.RETURN, thread, frozenset() if mark is None else frozenset({mark}), frames)
        self.stacks[thread].pop()

    def event(self, kind: Kind, thread: int = 0, item: tuple[int, int] = (0, 0)) -> None:
        self._event(kind, thread, item=item)

    def _event(
        self,
        kind: Kind,
        thread: int,
        marks: frozenset[Mark] = frozenset(),
        frames: tuple[bytes, ...] = (),
        item: tuple[int, int] = (0, 0),
    ) -> None:
        call = self.stacks[thread][-1] if self.stacks[thread] else -1
        self.trace.events.append(Event(kind, thread, call, marks, frames, item))

    def path(self, begin: int | None = None) -> Path:
        path = find(self.trace, len(self.trace.events) - 1, {MARK}, begin)
        assert path is not None
        return path


def functions(path: Path) -> list[list[str]]:
    return [[f"{module}.{function}" for module, function in hops] for _, hops in path.segments]


def test_a_call_that_only_looks_at_the_item_is_no_hop() -> None:
    trace = Written()
    trace.call("a.begin", MARK)
    trace.call("a.looks", MARK)
    trace.back()
    trace.call("b.changes", MARK)
    trace.back(MARK)
    trace.call("b.end", MARK)
    path = trace.path(begin=0)
    assert functions(path) == [["a.begin", "b.changes", "b.end"]]
    assert (path.hops, path.files, path.handovers) == (3, 2, 0)


def test_calls_of_one_function_by_another_count_once() -> None:
    trace = Written()
    trace.call("a.begin", MARK)
    for _ in range(5):
        trace.call("a.column", MARK)
        trace.back(MARK)
    trace.call("a.end", MARK)
    assert trace.path(begin=0).hops == 3


def test_a_queue_is_followed_to_the_matching_put() -> None:
    """Of three puts, the second has the item; a later call of the putting thread is not on the path."""
    trace = Written()
    trace.call("a.other")
    trace.event(Kind.PUT, item=(9, 1))
    trace.back()
    trace.call("a.begin", MARK)
    trace.call("a.puts")
    trace.event(Kind.PUT, item=(9, 2))
    trace.back()
    trace.call("a.later", MARK)
    trace.back(MARK)
    trace.event(Kind.PUT, item=(9, 3))
    trace.back()
    for number in (1, 2):
        trace.event(Kind.GET, thread=1, item=(9, number))
    trace.call("b.end", MARK, thread=1)
    path = trace.path(begin=1)
    assert functions(path) == [["a.begin", "a.puts"], ["b.end"]]
    assert path.handovers == 1
    assert path.threads == frozenset({"first", "second"})


def test_a_socket_is_followed_to_the_same_bytes() -> None:
    """Other bytes with the mark were sent later."""
    trace = Written()
    trace.call("a.begin", MARK)
    trace.call("a.encode", MARK)
    trace.back(MARK, frames=(b"length, and the frame",))
    trace.call("a.encode_another", MARK)
    trace.back(MARK, frames=(b"something else",))
    trace.call("b.earlier", MARK, thread=1)
    trace.back(MARK, thread=1)
    trace.call("b.read", thread=1)
    trace.event(Kind.RECEIVE, thread=1)
    trace.back(MARK, thread=1, frames=(b"the frame",))
    trace.call("b.end", MARK, thread=1)
    path = trace.path(begin=0)
    assert functions(path) == [["a.begin", "a.encode"], ["b.read", "b.end"]]


def test_a_wake_up_without_contents_is_followed_too() -> None:
    trace = Written()
    trace.call("a.begin", MARK)
    trace.back(MARK)
    trace.call("a.poke")
    trace.event(Kind.PUT, item=(9, 1))
    trace.back()
    trace.event(Kind.GET, thread=1, item=(9, 1))
    trace.call("b.look", thread=1)
    trace.call("b.read", thread=1)
    trace.back(MARK, thread=1)
    assert functions(trace.path(begin=0)) == [["a.begin", "a.poke"], ["b.look", "b.read"]]


def test_there_is_no_path_to_a_call_that_did_not_cause_the_end() -> None:
    trace = Written()
    trace.call("a.unrelated")
    trace.back()
    trace.call("a.begin", MARK)
    trace.call("a.end", MARK)
    assert find(trace.trace, len(trace.trace.events) - 1, {MARK}, begin=0) is None


def test_a_turn_ends_with_the_step_of_the_last_subtask() -> None:
    """The turn without a batch does not count; the mail before a turn's steps does."""
    trace = Written()
    for forwarded in (False, True):
        trace.call("loop.mail")
        trace.back()
        for owner in (1, 2):
            trace.call("task.step", owner=owner)
            if forwarded and owner == 2:
                trace.call("operator.process")
                trace.back()
            trace.back()
    step, process = ("task", "step"), ("operator", "process")
    assert turns(trace.trace, step, process) == {"first": [Turn(calls=4, files=3)]}
    assert steps(trace.trace, step, process) == [Turn(calls=2, files=2)]


def through(item: int) -> int:
    return item


def takes(source: "queue.SimpleQueue[int]") -> int:
    return through(source.get(timeout=60))


def test_the_recorder_sees_what_threads_hand_over() -> None:
    recorder, numbers = Recorder({__name__}), queue.SimpleQueue[int]()
    thread = threading.Thread(target=lambda: takes(numbers), name="taker")

    def gives(item: int) -> None:
        numbers.put(through(item))

    recorder.install()
    try:
        thread.start()
        gives(MARK)
        thread.join()
    finally:
        recorder.uninstall()
    trace = recorder.trace
    last = max(index for index, event in enumerate(trace.events) if MARK in event.marks)
    path = find(trace, last, {MARK}, next(i for i, call in enumerate(trace.calls) if MARK in call.marks))
    assert path is not None
    names = [[function.rpartition(".")[2] for _, function in hops] for _, hops in path.segments]
    assert names == [["gives", "through"], ["<lambda>", "takes", "through"]]
    assert path.segments[-1][0] == "taker"


def test_the_table_shows_paths_and_the_spread_of_turns() -> None:
    path = Path((("first", (("a", "f"), ("a", "g"))), ("second", (("b", "h"),))))
    text = table({"a row": path}, {"slot 0": [Turn(10, 3), Turn(30, 5), Turn(20, 4)], "slot 1": []})
    rows = [line.split() for line in text.splitlines()]
    assert ["a", "row", "3", "2", "1"] in rows
    assert ["slot", "0", "3", "10", "/", "20", "/", "30", "3", "/", "4", "/", "5"] in rows
    assert ["slot", "1", "0", "-", "-"] in rows
    assert "  [second]\n    b:h" in list_hops("a row", path)


def test_the_median_path_is_shown() -> None:
    paths = [Path((("first", (("a", "f"),) * hops),)) for hops in (9, 1, 4)]
    assert middle(paths).hops == 4


def test_a_figure_above_its_limit_is_named() -> None:
    def path(hops: int, handovers: int = 0) -> Path:
        return Path((*((("first", ()),) * handovers), ("second", (("a", "f"),) * hops)))

    within = {name: path(budget.limit) for name, budget in MAX_HOPS.items()}
    calls = MAX_CALLS[FORWARDING].limit
    assert overruns(within, {FORWARDING: [Turn(calls, 1), Turn(calls, 1), Turn(2 * calls, 1)]}) == []
    above = within | {BARRIER: path(MAX_HOPS[BARRIER].limit + 1, MAX_HANDOVERS[BARRIER].limit + 1)}
    named = overruns(above, {FORWARDING: [Turn(calls + 1, 1)]})
    assert [line.split(": ")[1].split()[1] for line in named] == ["hops,", "handovers,", "calls,"]


@pytest.mark.slow
@pytest.mark.timeout(600)  # each call of the job is recorded
def test_a_row_a_barrier_and_a_savepoint_of_the_real_job_are_traced() -> None:
    """Their paths pass through Flight, the control connections and Postgres; each ends where the table says.

    The command fails if a figure is above its limit in `benchmarks.trace.budget`.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "DJANGO_"))}
    command = [sys.executable, "-m", "benchmarks.trace"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]
    paths = re.findall(r"^a (row|barrier|savepoint)\b.*?(\d+) +(\d+) +(\d+)$", process.stdout, re.MULTILINE)
    assert [name for name, *_ in paths] == ["row", "barrier", "savepoint"]
    assert all(int(hops) > int(files) > int(handovers) > 5 for _, hops, files, handovers in paths)
