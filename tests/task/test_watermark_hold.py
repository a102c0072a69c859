"""What waits for rows that an operator still has inside."""

from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import (
    MAX_WATERMARK,
    Barrier,
    CheckpointKind,
    Control,
    EndOfData,
    EndOfPartition,
    Idle,
    Records,
    TerminationMarker,
    Watermark,
)
from runtime.ports import Collector, Operator
from runtime.task.watermark_hold import WatermarkHold

ONE, TWO = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
BATCH = Records(None, 1, 1)
BARRIER = Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0)


class Holding(Operator):
    """Has rows inside that came at the event time `hold`."""

    def __init__(self, hold: int | None = None, room: bool = True) -> None:
        self.hold, self.room = hold, room

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        raise AssertionError("nothing is processed here")

    def ready(self, finishing: bool) -> bool:
        return self.hold is None if finishing else self.room

    def watermark_hold(self) -> int | None:
        return self.hold


def restraint(operator: Operator | None) -> tuple[WatermarkHold, list[Control]]:
    sent: list[Control] = []
    return WatermarkHold(operator, (ONE, TWO), sent.append), sent


def test_event_time_and_idleness_wait_for_rows_and_barriers_do_not() -> None:
    operator = Holding(hold=10)
    watermark_hold, sent = restraint(operator)
    for message in (Watermark(10), Watermark(11), Idle(), Watermark(11), BARRIER):
        watermark_hold.broadcast(message)
    assert sent == [Watermark(10), BARRIER]
    operator.hold = 11
    watermark_hold.release()
    assert sent[2:] == [Watermark(11)]
    operator.hold = None
    watermark_hold.release()
    assert sent[3:] == [Idle(), Watermark(11)]


def test_nothing_is_held_by_an_operator_without_rows() -> None:
    for operator in (Holding(), None):
        watermark_hold, sent = restraint(operator)
        for message in (Watermark(5), Idle(), BARRIER, EndOfPartition()):
            watermark_hold.broadcast(message)
        assert sent == [Watermark(5), Idle(), BARRIER, EndOfPartition()]


def test_what_was_held_at_a_stop_is_not_told_behind_the_end() -> None:
    """The successors are told by the next attempt."""
    watermark_hold, sent = restraint(Holding(hold=1))
    watermark_hold.broadcast(Watermark(50))
    watermark_hold.broadcast(EndOfData(drain=False))
    watermark_hold.release()
    assert sent == [EndOfData(drain=False)]


def test_what_was_held_at_a_true_end_is_told_before_it() -> None:
    """S0-34: the rows are out then, and there is no next attempt that would tell it."""
    watermark_hold, sent = restraint(Holding(hold=1))
    for message in (Watermark(50), Watermark(MAX_WATERMARK), EndOfData(drain=True)):
        watermark_hold.broadcast(message)
    assert sent == [Watermark(50), Watermark(MAX_WATERMARK), EndOfData(drain=True)]


@pytest.mark.parametrize("room", [True, False])
def test_batches_wait_for_room(room: bool) -> None:
    watermark_hold, _ = restraint(Holding(room=room))
    answers: list[Any] = [
        watermark_hold.may_handle(message) for message in (BATCH, Watermark(1), BARRIER, EndOfPartition())
    ]
    assert answers == [room, True, True, True]


def test_only_the_last_true_end_waits_for_rows() -> None:
    """S0-34: the end of one channel is no end for the operator while another one goes on."""
    operator = Holding(hold=1)
    watermark_hold, _ = restraint(operator)
    assert not watermark_hold.must_hold(ONE, EndOfData(drain=True))
    watermark_hold.on_end_of_data(ONE)
    assert watermark_hold.must_hold(TWO, EndOfData(drain=True))
    assert not watermark_hold.must_hold(TWO, EndOfData(drain=False)), "at a stop the rows are in the savepoint"
    operator.hold = None
    assert not watermark_hold.must_hold(TWO, EndOfData(drain=True))


def test_one_that_was_finished_on_restore_takes_everything() -> None:
    watermark_hold, _ = restraint(None)
    watermark_hold.on_end_of_data(TWO)
    assert watermark_hold.may_handle(Watermark(MAX_WATERMARK))
    assert not watermark_hold.must_hold(ONE, EndOfData(drain=True))


def test_a_probe_of_a_loop_waits_until_nothing_is_inside() -> None:
    """S4-41: else the loop would seem empty."""
    for hold, waits in ((5, True), (None, False)):
        watermark_hold, _ = restraint(Holding(hold))
        assert watermark_hold.must_hold(ONE, TerminationMarker(1, 0)) is waits
