"""Event time of a subtask with two inputs."""

from itertools import permutations

import pytest

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK, Barrier, CheckpointKind, EndOfData, Idle, Watermark
from runtime.core.subtask.watermark_valve import PaneEndWatermarks, WatermarkValve

LEFT, RIGHT, THIRD = ChannelId(0, 0, 0), ChannelId(1, 0, 0), ChannelId(2, 0, 0)
BESIDE = ChannelId(0, 1, 0)  #: of the edge of LEFT


def test_the_minimum_over_the_channels_counts() -> None:
    watermarks = WatermarkValve([LEFT, RIGHT])
    assert watermarks.current == MIN_WATERMARK
    assert watermarks.advance(LEFT, 10) is None
    assert watermarks.advance(RIGHT, 5) == 5
    assert watermarks.advance(RIGHT, 20) == 10
    assert watermarks.advance(RIGHT, 30) is None, "the left one holds it back"


def test_a_channel_never_goes_back() -> None:
    watermarks = WatermarkValve([LEFT])
    assert watermarks.advance(LEFT, 10) == 10
    assert watermarks.advance(LEFT, 5) is None
    assert watermarks.current == 10


def test_an_idle_channel_is_set_aside_until_it_speaks() -> None:
    watermarks = WatermarkValve([LEFT, RIGHT])
    watermarks.advance(LEFT, 10)
    assert watermarks.mark_idle(RIGHT) == 10
    assert not watermarks.all_idle
    assert watermarks.advance(RIGHT, 3) is None, "late, but the subtask does not go back"
    assert watermarks.advance(LEFT, 20) is None, "the right one counts again"


def test_an_idle_channel_beside_an_active_channel_of_its_edge_counts() -> None:
    """Its sender may discover earlier records, and resume after its sibling. The sender follows its siblings."""
    watermarks = WatermarkValve([LEFT, BESIDE])
    assert watermarks.mark_idle(BESIDE, 3) is None
    assert watermarks.advance(LEFT, 10) == 3
    assert watermarks.mark_idle(BESIDE, 8) == 8
    assert watermarks.mark_idle(LEFT) is None, "all are idle: the sender of the other channel follows"
    assert watermarks.all_idle
    assert watermarks.mark_idle(BESIDE, 10) == 10
    assert watermarks.advance(LEFT, 20) is None, "the other may still resume"


def test_an_idle_edge_counts_with_its_slowest_channel() -> None:
    watermarks = WatermarkValve([LEFT, BESIDE, RIGHT])
    watermarks.mark_idle(LEFT, 30)
    watermarks.mark_idle(BESIDE, 5)
    assert watermarks.mark_idle(RIGHT, 2) == 5


def test_when_all_are_idle_time_stands_still() -> None:
    watermarks = WatermarkValve([LEFT])
    assert watermarks.mark_idle(LEFT) is None
    assert watermarks.all_idle
    assert watermarks.current == MIN_WATERMARK, "no channel has said anything of time"


@pytest.mark.parametrize("order", [*permutations([LEFT, RIGHT, THIRD])])
def test_when_the_last_channel_becomes_idle_time_rises_to_the_maximum(order: tuple[ChannelId, ...]) -> None:
    """Whatever the order, a window below the maximum waits for no channel any more."""
    watermarks = WatermarkValve([LEFT, RIGHT, THIRD])
    for channel, time in ((LEFT, 100), (RIGHT, 5), (THIRD, 20)):
        watermarks.advance(channel, time)
    risen = [watermarks.mark_idle(channel) for channel in order]
    assert watermarks.current == 100
    assert (risen[-1] == 100) == (order[-1] != LEFT), "it is told once"
    assert watermarks.advance(RIGHT, 30) is None, "late, but the subtask does not go back"


def test_what_an_ended_channel_had_reached_counts_when_the_others_become_idle() -> None:
    watermarks = WatermarkValve([LEFT, RIGHT])
    watermarks.advance(LEFT, 100)
    watermarks.advance(RIGHT, 5)
    assert watermarks.advance(LEFT, MAX_WATERMARK) is None
    assert watermarks.end_channel(LEFT) is None, "the right one is active"
    assert watermarks.mark_idle(RIGHT) == 100, "not the end of time: the right one may come back"


def test_the_end_of_the_last_active_channel_raises_time_as_well() -> None:
    watermarks = WatermarkValve([LEFT, RIGHT, THIRD])
    watermarks.advance(LEFT, 100)
    watermarks.mark_idle(LEFT)
    watermarks.advance(RIGHT, 5)
    watermarks.mark_idle(THIRD)
    assert watermarks.current == 5
    assert watermarks.advance(RIGHT, MAX_WATERMARK) is None, "records may precede its end of data"
    assert watermarks.end_channel(RIGHT) == 100


def test_the_end_of_one_channel_does_not_speak_for_another_that_is_idle() -> None:
    """Time at its end would make all that the idle one still brings late."""
    watermarks = WatermarkValve([LEFT, RIGHT])
    watermarks.advance(LEFT, 10)
    watermarks.mark_idle(RIGHT)
    assert watermarks.advance(LEFT, MAX_WATERMARK) is None
    states = [(watermarks.current, watermarks.all_idle)]  # its last words may still be records
    watermarks.end_channel(LEFT)
    states.append((watermarks.current, watermarks.all_idle))
    for time in (30, MAX_WATERMARK):
        watermarks.advance(RIGHT, time)
        states.append((watermarks.current, watermarks.all_idle))
    assert states == [(10, False), (10, True), (30, False), (MAX_WATERMARK, False)]


def test_no_channel_is_idle_while_the_job_drains() -> None:
    """Each ends soon, with rows of open windows before its end."""
    watermarks = WatermarkValve([LEFT, BESIDE, RIGHT])
    watermarks.mark_idle(BESIDE, 5)
    for channel, time in ((LEFT, 5), (RIGHT, 90)):
        watermarks.advance(channel, time)
    watermarks.advance(RIGHT, MAX_WATERMARK)
    watermarks.end_channel(RIGHT)
    watermarks.advance(LEFT, MAX_WATERMARK)
    watermarks.job_drains = True
    assert watermarks.end_channel(LEFT) is None, "not 90: the idle channel counts"
    assert (watermarks.current, watermarks.all_idle) == (5, False)
    assert watermarks.mark_idle(BESIDE, 7) == 7
    assert watermarks.advance(BESIDE, MAX_WATERMARK) == MAX_WATERMARK


def test_the_restored_watermark_is_a_floor() -> None:
    """A window that has fired must not open again."""
    watermarks = WatermarkValve([LEFT], restored=50)
    assert watermarks.current == 50
    assert watermarks.advance(LEFT, 40) is None
    assert watermarks.advance(LEFT, 60) == 60


def test_a_source_has_only_its_own() -> None:
    watermarks = WatermarkValve([])
    assert watermarks.advance_own(7) == 7
    assert watermarks.advance_own(7) is None


def test_a_channel_is_compared_with_those_that_may_still_bring_something() -> None:
    """Whatever time was restored: only what has been heard tells who is behind."""
    watermarks = WatermarkValve([LEFT, RIGHT, THIRD], restored=50)
    states = [(watermarks.watermark_of(LEFT), watermarks.active_watermarks(LEFT))]
    for channel, time in ((LEFT, 70), (RIGHT, 60), (THIRD, 80), (RIGHT, MAX_WATERMARK)):
        watermarks.advance(channel, time)
        states.append((watermarks.watermark_of(LEFT), watermarks.active_watermarks(LEFT)))
    watermarks.mark_idle(THIRD)
    states.append((watermarks.watermark_of(LEFT), watermarks.active_watermarks(LEFT)))
    never = MIN_WATERMARK
    cases = [[never, never], [60, never], [60, 80], [80], []]
    assert states == [(never, [never, never]), *((70, values) for values in cases)]


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
