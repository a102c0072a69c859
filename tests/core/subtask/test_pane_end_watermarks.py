"""An edge into a window whose output only sinks read forwards the watermarks that close a pane."""

from runtime.core.job.ids import CheckpointId
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK, Barrier, CheckpointKind, EndOfData, Idle, Watermark
from runtime.core.subtask.pane_end_watermarks import PaneEndWatermarks


def test_a_watermark_is_forwarded_as_the_last_pane_end_once() -> None:
    edge = PaneEndWatermarks(10)
    watermarks = [edge.forwarded(Watermark(time)) for time in (3, 8, 9, 15, 38)]
    assert watermarks == [Watermark(-1), None, Watermark(9), None, Watermark(29)]


def test_the_first_and_the_last_watermark_stay_as_they_are() -> None:
    edge = PaneEndWatermarks(10)
    assert edge.forwarded(Watermark(MIN_WATERMARK)) == Watermark(MIN_WATERMARK)
    assert edge.forwarded(Watermark(MAX_WATERMARK)) == Watermark(MAX_WATERMARK)


def test_a_watermark_after_idle_is_forwarded_again() -> None:
    """It marks the channel active, also without a new pane end."""
    edge = PaneEndWatermarks(10)
    assert edge.forwarded(Watermark(19)) == Watermark(19)
    assert edge.forwarded(Idle()) == Idle()
    assert edge.forwarded(Watermark(19)) == Watermark(19)


def test_an_idle_channel_forwards_the_pane_ends_that_it_follows() -> None:
    edge = PaneEndWatermarks(10)
    assert edge.forwarded(Idle(12)) == Idle(9)
    assert edge.forwarded(Idle(18)) is None
    assert edge.forwarded(Idle(25)) == Idle(19)


def test_other_control_messages_are_forwarded() -> None:
    barrier = Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0)
    edge = PaneEndWatermarks(10)
    assert [edge.forwarded(message) for message in (barrier, EndOfData(True))] == [barrier, EndOfData(True)]
