"""One live subtask of a source: idleness, and whom an error names."""

import threading
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import MIN_WATERMARK, Barrier, CheckpointKind, Idle, Message, Records, Watermark
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import CheckpointAborted, LiveOpened
from runtime.core.subtask.barrier_delay import MAX_HOLD_MS
from runtime.core.subtask.events import Triggered
from runtime.core.subtask.poll_policy import PollPolicy
from runtime.core.subtask.watermark_alignment import MIN_DRIFT_BATCHES, WAITED_COUNTER, ChannelDrift
from runtime.core.subtask.watermark_valve import WatermarkValve
from runtime.errors import DataRejected, OperatorFailure
from runtime.ports import OperatorContext, SourceReader
from runtime.task.source_operator import SourceOperator
from runtime.task.task import Task
from tests.core.builders import chain, subtask
from tests.core.subtask.drift import WindowStub
from tests.manual_clock import ManualClock
from tests.task.tasks import grow_batches, opened

GRAPH, SOURCE = chain(), subtask("a/0")
BATCH = pa.record_batch({"value": [1, 2]})
BARRIER = Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0)


class Reader(SourceReader):
    """Gives what is put into `ready`; raises at one place if it is told to."""

    def __init__(self, raises: str = "", error: Exception | None = None) -> None:
        self.ready: list[pa.RecordBatch] = []
        self.time: int | None = None
        self.quiet = False
        self.over = False
        self.disorder_ms = 0
        self.waits = False  #: for the live part
        self.waited_at_snapshot: list[bool] = []
        self._raises, self._error = raises, error

    def _at(self, place: str) -> None:
        if place == self._raises and self._error is not None:
            raise self._error

    def open(self, context: OperatorContext) -> None:
        self._lists = context.state.list_state("positions")

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        self._at("poll")
        return self.ready.pop(0) if self.ready else None

    @property
    def exhausted(self) -> bool:
        self._at("exhausted")
        return self.over

    @property
    def idle(self) -> bool:
        self._at("idle")
        return self.quiet

    @property
    def awaits_live(self) -> bool:
        return self.waits

    def begin_live(self) -> None:
        self.waits = False

    def watermark(self) -> int | None:
        self._at("watermark")
        return self.time

    @property
    def max_disorder_ms(self) -> int:
        return self.disorder_ms

    def snapshot(self, checkpoint: int) -> None:
        self._at("snapshot")
        self.waited_at_snapshot.append(self.waits)
        if self._raises == "capture":
            self._lists.replace([threading.Lock()])

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        raise AssertionError("nothing is completed here")


def task(reader: Reader, sent: list[Message], clock: ManualClock | None = None) -> Task:
    clock = clock or ManualClock(1_000)
    task = opened(GRAPH, SOURCE, SourceOperator(reader), clock, lambda channel, message: sent.append(message))
    task.start()
    return task


def far_ahead() -> tuple[PollPolicy, WatermarkValve]:
    """Of a source whose windows have heard of another, too."""
    channel, other = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
    valve = WatermarkValve([channel, other])
    valve.advance(channel, 1_000)
    reading = grow_batches(PollPolicy([ChannelDrift(WindowStub(valve), channel, 10)]))
    for _ in range(MIN_DRIFT_BATCHES):
        reading.on_batch([1], reading.max_rows, 0.0, 0.0)
    valve.advance(other, 50)
    return reading, valve


def before_an_end(sent: list[Message], clock: ManualClock) -> tuple[Task, Reader]:
    """A source that passes an end of a pane with each batch, and has just given one."""
    reader = Reader()
    source = task(reader, sent, clock)
    channel = ChannelId(0, 0, 0)
    drift = ChannelDrift(WindowStub(WatermarkValve([channel])), channel, 10)
    source.poll_policy = grow_batches(PollPolicy(pane_drifts=[drift]))
    for time in (9, 19):
        bring(source, reader, time)
    sent.clear()
    return source, reader


def bring(source: Task, reader: Reader, time: int) -> None:
    reader.ready, reader.time = [BATCH], time
    source.step()


def of(sent: list[Message]) -> list[str]:
    return [type(message).__name__ for message in sent]


def test_a_barrier_waits_for_the_end_of_a_pane_and_goes_with_the_word_of_it() -> None:
    sent: list[Message] = []
    source, reader = before_an_end(sent, ManualClock(1_000))
    source.on_master_event(Triggered(BARRIER))
    assert source.barrier_in_ms == MAX_HOLD_MS
    bring(source, reader, 25)
    assert of(sent) == ["Records", "Watermark"]
    bring(source, reader, 29)
    assert of(sent[2:]) == ["Records", "Watermark", "Barrier"]
    assert source.barrier_in_ms is None


def test_a_barrier_that_a_source_delays_precedes_the_switch_to_its_live_part() -> None:
    """Or the snapshot of this subtask would hold the switch, and that of a sibling would not."""
    sent: list[Message] = []
    source, reader = before_an_end(sent, ManualClock(1_000))
    source.on_master_event(Triggered(BARRIER))
    reader.waits = True
    source.step()
    assert (source.machine.awaits_live, of(sent)) == (True, [])
    assert source.barrier_in_ms is not None, "it is held"
    source.on_master_event(LiveOpened(SOURCE.operator))
    assert of(sent) == ["Barrier"]
    assert reader.waited_at_snapshot == [True]
    assert not reader.waits


def test_a_barrier_waits_for_the_pane_of_the_newest_rows() -> None:
    sent: list[Message] = []
    source, reader = before_an_end(sent, ManualClock(1_000))
    reader.disorder_ms = 5
    bring(source, reader, 21)
    source.on_master_event(Triggered(BARRIER))
    sent.clear()
    bring(source, reader, 24)  # the newest row is at 29
    assert of(sent) == ["Records", "Watermark", "Barrier"]


def test_a_barrier_goes_before_the_end_once_its_time_is_up() -> None:
    sent: list[Message] = []
    clock = ManualClock(1_000)
    source, reader = before_an_end(sent, clock)
    source.on_master_event(Triggered(BARRIER))
    clock.advance(int(MAX_HOLD_MS))
    bring(source, reader, 25)
    assert of(sent) == ["Barrier", "Records", "Watermark"]


def test_a_barrier_waits_for_nothing_where_no_more_lies_ready() -> None:
    sent: list[Message] = []
    source, _ = before_an_end(sent, ManualClock(1_000))
    source.on_master_event(Triggered(BARRIER))
    source.step()
    assert (sent, source.barrier_in_ms) == ([], 0)
    source.step()
    assert of(sent) == ["Barrier"]


def test_what_the_master_says_next_waits_behind_a_barrier_and_lets_it_go() -> None:
    sent: list[Message] = []
    source, _ = before_an_end(sent, ManualClock(1_000))
    source.on_master_event(Triggered(BARRIER))
    source.on_master_event(CheckpointAborted(CheckpointId(1)))
    assert of(sent) == ["Barrier"]
    assert [type(event) for event in source.machine.event_log][-2:] == [Triggered, CheckpointAborted]


def test_a_source_that_has_nothing_more_ends_before_a_barrier_that_waits() -> None:
    sent: list[Message] = []
    source, reader = before_an_end(sent, ManualClock(1_000))
    source.on_master_event(Triggered(BARRIER))
    reader.over = True
    for _ in range(2):
        source.step()
    assert of(sent) == ["Watermark", "EndOfData", "Barrier"]


def test_an_idle_source_is_set_aside_until_just_before_its_next_records() -> None:
    sent: list[Message] = []
    reader = Reader()
    source = task(reader, sent)
    source.step()
    assert sent == [], "nothing to read is not idleness"
    reader.quiet = True
    assert not source.step()
    assert not source.step()
    assert sent == [Idle()]
    reader.ready, reader.time = [BATCH], 7
    assert source.step()
    assert sent[1:] == [Watermark(MIN_WATERMARK), Records(BATCH, 2, BATCH.nbytes), Watermark(7)]
    source.step()
    assert sent[4:] == [Idle(7)]


def test_an_idle_source_is_read_on_however_far_ahead_it_is() -> None:
    """Event time goes on without it: what it has to give would be late by the time that others have come so far."""
    sent: list[Message] = []
    reader = Reader()
    reader.quiet = True
    source = task(reader, sent)
    source.step()
    source.poll_policy, _ = far_ahead()
    assert source.wants_polling, "or its slot would not look again soon"
    reader.ready = [BATCH, BATCH]
    assert source.step()
    assert sent == [Idle(), Watermark(MIN_WATERMARK), Records(BATCH, 2, BATCH.nbytes)]
    assert not source.step(), "now others wait for it, and it for them"
    assert (source.wants_polling, source.poll_in_ms) == (False, None)


def test_it_is_told_how_long_a_source_has_waited_for_slower_ones_and_not_after_its_end() -> None:
    clock, reader = ManualClock(1_000), Reader()
    source = task(reader, [], clock)
    counters = []

    def pass_100_ms() -> None:
        for _ in range(2):
            source.step()
            clock.advance(100)
        source.step()
        counters.append(source.metrics().counters)

    pass_100_ms()
    source.poll_policy, valve = far_ahead()
    pass_100_ms()
    valve.mark_idle(ChannelId(0, 1, 0))
    reader.over = True
    source.step()
    valve.advance(ChannelId(0, 1, 0), 60)
    pass_100_ms()
    assert counters == [{}, {WAITED_COUNTER: 200}, {WAITED_COUNTER: 200}]


@pytest.mark.parametrize("error", [ValueError("why"), DataRejected("why"), OSError(24, "why")])
@pytest.mark.parametrize("place", ["poll", "watermark", "exhausted", "idle"])
def test_an_error_of_a_source_names_it_wherever_it_was_met(place: str, error: Exception) -> None:
    source = task(Reader(place, error), [])
    with pytest.raises(OperatorFailure, match=f"operator 'a', subtask 0, in {place}: .*why") as failed:
        source.step()
    assert failed.value.__cause__ is error


@pytest.mark.parametrize("place", ["snapshot", "capture"])
def test_an_error_at_a_snapshot_names_the_operator(place: str) -> None:
    """S2-36."""
    source = task(Reader(place, ValueError("why")), [])
    with pytest.raises(OperatorFailure, match="operator 'a', subtask 0, in snapshot: "):
        source.handle(Triggered(BARRIER))


def test_a_source_that_changes_its_columns_is_named() -> None:
    reader = Reader()
    source = task(reader, [])
    what: Any = pa.record_batch({"value": ["text"]})
    reader.ready = [BATCH, what]
    source.step()
    with pytest.raises(OperatorFailure, match=r"operator 'a', subtask 0, in poll: .*'value' was int64 and is string"):
        source.step()
