"""Polls of a source within a step: small batches are sent as one, and nothing overtakes their rows."""

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind, EndOfData, Message, Records, Watermark
from runtime.core.subtask.batch_size import COALESCED_BATCH_MS, MAX_COALESCED_ROWS
from runtime.core.subtask.events import Triggered
from runtime.core.subtask.poll_policy import POLL_INTERVAL_MS
from runtime.ports import OperatorContext, SourceReader
from runtime.task.source_operator import SourceOperator
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
