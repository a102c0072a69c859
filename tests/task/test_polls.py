"""Polls of a source within a step: small batches are sent as one, and nothing overtakes their rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind, EndOfData, Message, Records, Watermark
from runtime.core.snapshot.row_numbers import SplitCuts
from runtime.core.subtask.batch_size import COALESCED_BATCH_MS, MAX_COALESCED_ROWS
from runtime.core.subtask.events import Triggered
from runtime.core.subtask.poll_policy import POLL_INTERVAL_MS
from runtime.errors import RowsNotRepeated, WeirError
from runtime.ports import NumberedRows, OperatorContext, SourceReader
from runtime.task.source_operator import SourceOperator
from runtime.task.task import MAX_SEARCH_MS, Task
from tests.core.builders import chain, subtask
from tests.manual_clock import ManualClock
from tests.task.tasks import opened


@dataclass(frozen=True)
class Poll:
    """The reply to a poll: rows; 0: none are available. It takes `ms`."""

    rows: int
    ms: int = 0
    is_view: bool = False  #: the rows are of another type, which is converted before it is sent


class Reader(SourceReader):
    """Emits the integers from 0 on. A row with a time up to the watermark never follows."""

    def __init__(self, polls: list[Poll], clock: ManualClock) -> None:
        self._polls, self._clock = list(polls), clock
        self.next_row = 0
        self.captured: list[int] = []

    def open(self, context: OperatorContext) -> None: ...

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        if not self._polls:
            return None
        reply = self._polls.pop(0)
        self._clock.advance(reply.ms)
        if not reply.rows:
            return None
        first, self.next_row = self.next_row, self.next_row + min(reply.rows, max_rows)
        kind = pa.string_view() if reply.is_view else pa.string()
        return pa.record_batch({"value": pa.array(map(str, range(first, self.next_row)), kind)})

    @property
    def exhausted(self) -> bool:
        return not self._polls

    def watermark(self) -> int | None:
        return self.next_row - 1

    def snapshot(self, checkpoint: int) -> None:
        self.captured.append(self.next_row)


def sent_for(
    polls: list[Poll], triggered: frozenset[int] = frozenset(), send_ms: int = 0
) -> tuple[list[Message], Reader]:
    """All messages of a source, one step after the other.

    Args:
        triggered: the steps that follow a trigger.
        send_ms: time that the job takes for each batch.
    """
    sent: list[Message] = []
    clock = ManualClock(1_000)
    reader = Reader(polls, clock)

    def send(channel: ChannelId, message: Message) -> None:
        sent.append(message)
        clock.advance(send_ms if isinstance(message, Records) else 0)

    task = opened(chain(), subtask("a/0"), SourceOperator(reader), clock, send)
    task.start()
    for step in range(len(polls) + 2):
        if step in triggered:
            task.on_master_event(Triggered(Barrier(CheckpointId(step + 1), CheckpointKind.CHECKPOINT, 0)))
        task.outputs.credits.repay(next(iter(task.outputs.graph.outputs[task.id])), 10**9)
        task.step()
        if task.poll_policy.rests(clock.monotonic_ms()):
            clock.advance(int(POLL_INTERVAL_MS))
    return sent, reader


def batch_rows(polls: list[Poll], send_ms: int = 0) -> list[int]:
    """The rows of each batch behind a first: its duration decides about the second."""
    sent, _ = sent_for([Poll(7), *polls], send_ms=send_ms)
    first, *counts = (message.rows for message in sent if isinstance(message, Records))
    assert first == 7
    return counts


def test_small_batches_at_hand_are_sent_as_one() -> None:
    assert batch_rows([Poll(1_000)] * 3) == [3_000]
    assert batch_rows([Poll(1_000), Poll(1_000), Poll(0), Poll(1_000)]) == [2_000, 1_000]
    assert batch_rows([Poll(1_000)] * 12) == [MAX_COALESCED_ROWS, 3_000]
    assert batch_rows([Poll(MAX_COALESCED_ROWS), Poll(1_000)]) == [MAX_COALESCED_ROWS, 1_000]


def test_rows_wait_for_no_others() -> None:
    """Neither few rows, as of a source that keeps up, nor rows that took their time."""
    assert batch_rows([Poll(10)] * 3) == [10, 10, 10]
    assert batch_rows([Poll(100), Poll(10), Poll(100)]) == [110, 100]
    assert batch_rows([Poll(100, ms=3)] * 4) == [200, 200]


def test_a_source_that_runs_out_of_rows_rests() -> None:
    clock = ManualClock(1_000)
    reader = Reader([Poll(10), Poll(4), Poll(10)], clock)
    sent: list[Message] = []
    task = opened(chain(), subtask("a/0"), SourceOperator(reader), clock, lambda _, message: sent.append(message))
    task.start()
    assert task.step()
    assert task.step()
    assert not task.step(), "it rests"
    assert task.poll_in_ms == POLL_INTERVAL_MS
    clock.advance(int(POLL_INTERVAL_MS))
    assert task.step()
    assert [message.rows for message in sent if isinstance(message, Records)] == [10, 4, 10]


def test_batches_that_take_long_are_not_made_longer() -> None:
    """A barrier would wait behind them. Nor are batches after a gap, whose duration is unknown."""
    assert batch_rows([Poll(100)] * 3, send_ms=int(COALESCED_BATCH_MS)) == [100, 100, 100]
    assert batch_rows([Poll(100)] * 3, send_ms=int(COALESCED_BATCH_MS) - 1) == [300]
    assert batch_rows([Poll(0), *[Poll(100)] * 3]) == [100, 200]


def test_batches_of_other_types_are_sent_apart() -> None:
    assert batch_rows([Poll(100), Poll(100, is_view=True)]) == [100, 100]


class NumberedReader(Reader):
    """Its rows belong to `split`, and have the numbers in `numbers`, poll after poll, if there are any."""

    split = "other"
    numbers: tuple[Sequence[int], ...] = ()

    @property
    def numbered_rows(self) -> Sequence[NumberedRows]:
        if not self.numbers:
            return [NumberedRows(self.split, np.array([self.next_row], np.int64))]
        numbers, *self.numbers = self.numbers  # type: ignore[assignment]
        return [NumberedRows(self.split, np.array(numbers, np.int64))]


def numbering_task(polls: list[Poll], send_ms: int = 0) -> tuple[Task, NumberedReader, ManualClock]:
    """A source that is to repeat the rows of split "awaited". `send_ms`: time that the job takes for each batch."""
    clock = ManualClock(1_000)
    reader = NumberedReader(polls, clock)

    def send(channel: ChannelId, message: Message) -> None:
        clock.advance(send_ms if isinstance(message, Records) else 0)

    task = opened(chain(), subtask("a/0"), SourceOperator(reader), clock, send)
    task.cuts = SplitCuts([("awaited", 9)])
    task.start()
    return task, reader, clock


def step_numbering(task: Task, clock: ManualClock, steps: int) -> None:
    """The slot waits for a second if the source had no rows."""
    worked = True
    for _ in range(steps):
        task.outputs.credits.repay(next(iter(task.outputs.graph.outputs[task.id])), 10**9)
        clock.advance(int(POLL_INTERVAL_MS) if worked else 1_000)
        worked = task.step()


@pytest.mark.parametrize("numbers", [((0,),), ((-1,),), ((3, 9, 4),), ((5, 5),), ((7,), (7,)), ((7,), (6,))])
def test_numbers_from_1_on_that_rise_are_a_must(numbers: tuple[Sequence[int], ...]) -> None:
    """S4-45: 0 means no number, and the end of a batch is the number of its last row."""
    task, reader, clock = numbering_task([Poll(len(each)) for each in numbers])
    reader.numbers = numbers
    with pytest.raises(WeirError, match="no rising order from 1 on"):
        step_numbering(task, clock, len(numbers))


@pytest.mark.parametrize("poll", [Poll(0), Poll(1, ms=1_000), Poll(1)])
def test_rows_that_never_come_are_noticed_although_others_do(poll: Poll) -> None:
    """S4-45: a source without rows, one that always has other rows, and one that has them now and then."""
    polls = [poll, Poll(0)] * 100 if poll == Poll(1) else [poll] * 100
    task, _, clock = numbering_task(polls)
    began = clock.monotonic_ms()
    with pytest.raises(RowsNotRepeated, match="does not find the rows"):
        step_numbering(task, clock, len(polls))
    assert MAX_SEARCH_MS < clock.monotonic_ms() - began < 1.2 * MAX_SEARCH_MS


def test_slow_steps_are_no_search() -> None:
    """No false alarm: the job takes 10 s for each batch before the rows that are to be repeated."""
    task, reader, clock = numbering_task([Poll(1)] * 102, send_ms=10_000)
    step_numbering(task, clock, 100)
    reader.split = "awaited"
    reader.numbers = ((9,),)
    assert task.cuts is not None
    assert task.cuts.repeats
    step_numbering(task, clock, 1)
    assert not task.cuts.repeats


@given(
    polls=st.lists(st.builds(Poll, st.sampled_from([0, 1, 63, 64, 100, 5_000]), st.integers(0, 3)), max_size=30),
    triggered=st.frozensets(st.integers(0, 30)),
)
def test_nothing_overtakes_polled_rows(polls: list[Poll], triggered: frozenset[int]) -> None:
    """S1-25: a barrier follows exactly the rows before the captured position, a watermark all rows up to its time."""
    sent, reader = sent_for(polls, triggered)
    rows, captured = 0, iter(reader.captured)
    for message in sent:
        match message:
            case Records(batch):
                assert batch["value"].to_pylist() == [str(row) for row in range(rows, rows + batch.num_rows)]
                rows += batch.num_rows
            case Watermark(time) if time < reader.next_row:
                assert time == rows - 1
            case Barrier():
                assert next(captured) == rows
            case EndOfData():
                assert rows == reader.next_row
    assert rows == reader.next_row
