"""A barrier waits for the end of a pane where one is near, and never for long."""

from dataclasses import dataclass, field

import pytest

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.subtask.barrier_delay import MAX_BATCH_REDUCTION, MAX_HOLD_MS, MAX_PANE_WALL_MS, BarrierDelay
from runtime.core.subtask.watermark_alignment import ChannelDrift
from runtime.core.subtask.watermark_valve import WatermarkValve
from tests.core.subtask.drift import WindowStub

OWN, OTHER = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
PANE_MS = 1_000
BARRIER = Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0)


@dataclass
class Read:
    """A source that gives a row each event millisecond, and ten in one of wall time."""

    window: WindowStub = field(default_factory=lambda: WindowStub(WatermarkValve([OWN, OTHER])))
    event_ms_per_ms: float = 10.0
    disorder_ms: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.placement = BarrierDelay([ChannelDrift(self.window, OWN, PANE_MS)])
        self.at = 0  #: of the next row

    def to(self, at: int) -> "Read":
        self.now += (at - self.at) / self.event_ms_per_ms
        self.placement.on_batch(at - 1 - self.disorder_ms, at - self.at, self.now, self.disorder_ms)
        self.at = at
        return self

    def keeps(self) -> bool:
        return self.placement.hold(BARRIER, self.now)

    def due(self) -> bool:
        return self.placement.due_in(self.now) == 0


def fast() -> Read:
    return Read().to(500).to(1_100).to(2_100)


def test_it_waits_for_the_end_of_the_pane() -> None:
    source = fast()
    assert source.keeps()
    results = [source.to(at).due() for at in (2_900, 2_999, 3_000)]
    assert results == [False, False, True]
    assert source.placement.release() == BARRIER
    assert source.placement.release() is None
    assert source.placement.due_in(source.now) is None


def test_it_waits_for_the_end_of_the_pane_of_the_newest_rows_not_of_the_watermark() -> None:
    source = Read(disorder_ms=1_400).to(500).to(1_100).to(2_100)
    assert source.keeps()
    results = [source.to(at).due() for at in (2_400, 2_900, 3_000)]
    assert results == [False, False, True]


def test_a_small_disorder_leaves_the_barrier_at_the_pane_end_of_the_watermark() -> None:
    """Few rows lie behind that end, so the windows are nearly empty there."""
    source = Read(disorder_ms=499).to(500).to(1_600).to(2_600)
    assert source.keeps()
    results = [source.to(at).due() for at in (3_000, 3_400, 3_499)]
    assert results == [False, False, True]


def test_it_goes_as_far_as_a_sibling_of_the_same_disorder_that_is_ahead() -> None:
    """The sibling has forwarded the pane end 1,999, so its newest row is at 3,000 at least."""
    source = Read(disorder_ms=1_000).to(500).to(1_100).to(2_100)
    source.window.watermarks.advance(OTHER, 1_999)
    assert source.keeps()
    assert [source.to(at).due() for at in (3_000, 3_999, 4_000)] == [False, False, True]


def test_it_waits_no_longer_than_a_trigger_may_take_anyway() -> None:
    source = fast()
    assert source.keeps()
    assert source.placement.due_in(source.now + MAX_HOLD_MS - 1) == 1
    assert source.placement.due_in(source.now + MAX_HOLD_MS) == 0


@pytest.mark.parametrize(
    "source",
    [
        Read().to(500),
        Read(event_ms_per_ms=1).to(500).to(1_100).to(2_100),
    ],
    ids=["has passed none", "reads in real time"],
)
def test_it_does_not_wait_where_no_end_is_known_to_be_near(source: Read) -> None:
    assert not source.keeps()


def test_it_does_not_wait_once_it_has_become_slow() -> None:
    source = fast()
    source.now += MAX_PANE_WALL_MS + 1
    assert not source.keeps()
    assert not source.to(3_100).keeps(), "that pane took long"
    assert source.to(4_100).keeps()


def test_who_has_read_all_that_lay_ready_does_not_wait() -> None:
    source = fast()
    assert source.keeps()
    source.placement.on_empty()
    assert source.due()
    source.placement.release()
    assert not source.keeps()
    assert source.to(3_100).keeps()


def test_without_windows_it_never_waits() -> None:
    placement = BarrierDelay()
    for at in range(1, 5):
        placement.on_batch(at * 1_000, 1_000, at)
    assert not placement.hold(BARRIER, 5)


def test_it_goes_as_far_as_a_sibling_that_is_ahead() -> None:
    source = fast()
    source.window.watermarks.advance(OTHER, 2_999)
    assert source.keeps()
    assert [source.to(at).due() for at in (3_000, 3_999, 4_000)] == [False, False, True]


def test_what_a_sibling_says_too_late_moves_the_end_once() -> None:
    """It had passed the end when both were triggered, and its word was on its way."""
    source = fast()
    assert source.keeps()
    source.window.watermarks.advance(OTHER, 2_999)
    assert not source.to(3_000).due()
    source.window.watermarks.advance(OTHER, 3_999)
    assert source.to(4_000).due()


def test_a_sibling_whose_barrier_is_here_has_ended_there() -> None:
    source = fast()
    assert source.keeps()
    source.window.watermarks.advance(OTHER, 2_999)
    source.window.blocked_channels.add(OTHER)
    assert source.to(3_000).due()


def test_the_batch_before_the_end_is_as_large_as_what_is_left() -> None:
    source = fast()
    assert source.placement.limit_rows(700) == 700
    assert source.keeps()
    assert source.placement.limit_rows(700) == 700
    source.to(2_600)
    assert source.placement.limit_rows(700) == 400
    source.to(2_999)
    assert source.placement.limit_rows(700) == 700 // MAX_BATCH_REDUCTION, "not one row alone: it was an estimate"
