"""When a task fires processing timers: once due, with credit, between its start and the end of its input."""

from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.messages import EndOfData, Message, Records
from runtime.core.subtask.credits import FlowControl
from runtime.core.subtask.events import MessageArrived
from runtime.errors import OperatorFailure
from runtime.ports import Collector, Operator
from runtime.task.task import Task
from tests.core.builders import chain, subtask
from tests.manual_clock import ManualClock
from tests.task.tasks import opened

GRAPH, ME = chain(), subtask("b/0")
RUNG = pa.record_batch({"rung": [1]})


class Alarm(Operator):
    """Rings at each of `times`."""

    def __init__(self, *times: int, error: Exception | None = None) -> None:
        self.times = list(times)
        self._error = error

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        out.emit(batch)

    def next_processing_timer(self) -> int | None:
        return self.times[0] if self.times else None

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        if self._error is not None:
            raise self._error
        while self.times and self.times[0] <= now_ms:
            self.times.pop(0)
            out.emit(RUNG)


def ringing(alarm: Alarm, clock: ManualClock, sent: list[Message]) -> Task:
    return opened(GRAPH, ME, alarm, clock, lambda channel, message: sent.append(message))


def test_a_timer_fires_when_its_time_has_come_and_not_before_the_start() -> None:
    clock, sent = ManualClock(100), list[Message]()
    task = ringing(Alarm(50, 130), clock, sent)
    assert (task.timer_in_ms, task.step()) == (None, False)
    task.start()
    assert (task.timer_in_ms, task.step()) == (0, True)
    assert (task.timer_in_ms, task.step(), len(sent)) == (30, False, 1)
    clock.advance(30)
    assert task.step()
    assert sent == [Records(RUNG, 1, RUNG.nbytes)] * 2
    assert (task.timer_in_ms, task.step()) == (None, False)


def test_a_timer_waits_for_credit() -> None:
    clock, sent = ManualClock(100), list[Message]()
    task = ringing(Alarm(50), clock, sent)
    task.start()
    channel = GRAPH.outputs[ME][0]
    task.outputs.credits.spend(channel, FlowControl().max_bytes)
    assert (task.timer_in_ms, task.step(), sent) == (None, False, [])
    task.outputs.credits.repay(channel, FlowControl().max_bytes)
    assert task.step()
    assert len(sent) == 1


@pytest.mark.parametrize("drain", [False, True])
def test_no_timer_fires_after_the_end_of_the_input(drain: bool) -> None:
    """Nothing but end events follows the barrier of a stop, and a finished operator may not emit."""
    clock, sent = ManualClock(100), list[Message]()
    task = ringing(Alarm(110), clock, sent)
    task.start()
    task.handle(MessageArrived(GRAPH.inputs[ME][0], EndOfData(drain)))
    clock.advance(1_000)
    assert (task.timer_in_ms, task.step()) == (None, False)
    assert not [message for message in sent if isinstance(message, Records)]


def test_rows_and_timers_take_turns() -> None:
    """A function that sets its timer anew for now does not keep rows out."""

    class Restless(Alarm):
        def on_processing_time(self, now_ms: int, out: Collector) -> None:
            out.emit(RUNG)

    clock, sent = ManualClock(100), list[Message]()
    task = ringing(Restless(50), clock, sent)
    task.start()
    row: Any = pa.record_batch({"rung": [2]})
    task.deliver(GRAPH.inputs[ME][0], Records(row, 1, row.nbytes))
    task.step()
    assert [message.payload for message in sent if isinstance(message, Records)] == [row, RUNG]


def test_an_error_in_a_timer_names_the_operator() -> None:
    task = ringing(Alarm(50, error=ValueError("why")), ManualClock(100), [])
    task.start()
    with pytest.raises(OperatorFailure, match="operator 'b', subtask 0, in on_processing_time: ValueError: why"):
        task.step()
