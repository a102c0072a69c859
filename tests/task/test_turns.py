"""How much of what waits for a subtask it takes in one turn of its slot."""

import pyarrow as pa
import pytest

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Idle, Message, Records, Watermark
from runtime.core.subtask.credits import FlowControl
from runtime.operators.functions.batch import MapBatches
from runtime.task.task import Task
from tests.core.builders import edge, operator, sink, source, subtask
from tests.manual_clock import ManualClock
from tests.task.tasks import opened

GRAPH = JobGraph(
    (source("a", 2), operator("b", 2), sink("c", 2)),
    (edge("a", "b", Partitioning.HASH), edge("b", "c", Partitioning.FORWARD)),
    max_parallelism=8,
)
BATCH = pa.record_batch({"key": [1]})


@pytest.fixture
def task() -> Task:
    task = opened(GRAPH, subtask("b/0"), MapBatches(lambda batch: batch), ManualClock())
    task.start()
    return task


def brought(task: Task, *channels: int) -> None:
    """What a turn of these sources brings."""
    for number in channels:
        channel = ChannelId(0, number, 0)
        task.deliver(channel, Records(BATCH, 1, BATCH.nbytes))
        task.deliver(channel, Watermark(task.records_in + 10))


def turns(task: Task) -> list[int]:
    """How many rows it takes in each turn, until there is nothing more."""
    counts = []
    before = task.records_in
    while task.step():
        counts.append(task.records_in - before)
        before = task.records_in
    return counts


def test_it_takes_what_a_turn_of_all_its_predecessors_brings(task: Task) -> None:
    """Or words about event time would pile up before it without bounds, since they cost no credit."""
    for _ in range(3):
        brought(task, 0, 1)
        assert turns(task)[0] == 2
        assert task.machine.watermark == task.records_in - 2 + 10


@pytest.mark.parametrize(("takes_ms", "expected"), [(0, [7]), (4, [3, 3, 1]), (20, [2, 2, 2, 1])])
def test_a_turn_takes_a_batch_per_input_and_more_within_ten_milliseconds(takes_ms: int, expected: list[int]) -> None:
    """A cheap step takes all that a busy step before it has emitted. Behind a busy step, others have their turn."""
    clock = ManualClock()

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock.advance(takes_ms)
        return batch

    task = opened(GRAPH, subtask("b/0"), MapBatches(work), clock)
    task.start()
    brought(task, 0, 0, 0, 0, 0, 0, 0)
    assert turns(task) == expected


def test_words_alone_take_no_turn_each(task: Task) -> None:
    for time in range(50):
        task.deliver(ChannelId(0, 0, 0), Watermark(time))
    assert turns(task) == [0]


@pytest.mark.parametrize("message", [Watermark(5), Idle(5)], ids=["watermark", "idle"])
def test_what_may_cause_output_waits_for_credit(task: Task, message: Message) -> None:
    """Idle too: the sender's pre-aggregated rows precede it, as they precede a watermark."""
    (channel,) = task.outputs.graph.outputs[task.id]
    task.outputs.credits.spend(channel, FlowControl().max_bytes)
    for number in range(2):
        task.deliver(ChannelId(0, number, 0), message)
    assert (turns(task), task.machine.watermark < 5) == ([], True)
    task.outputs.credits.repay(channel, FlowControl().max_bytes)
    assert (turns(task), task.machine.watermark) == ([0], 5)


def test_a_function_that_does_not_return_is_busy_while_it_runs() -> None:
    """Heartbeats come from another thread in the middle of a step: a subtask that hangs in its function is not idle."""
    clock, readings = ManualClock(), list[float]()

    def hangs(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock.advance(40_000)
        readings.append(hanging.metrics().busy_ms)
        return batch

    hanging = opened(GRAPH, subtask("b/0"), MapBatches(hangs), clock)
    hanging.start()
    brought(hanging, 0)
    turns(hanging)
    assert readings == [40_000]
    assert hanging.metrics().busy_ms == 40_000
