"""A source that is ahead of others in event time waits for them, and for nobody who will not come."""

import pytest

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.messages import MAX_WATERMARK
from runtime.core.subtask.watermark_alignment import (
    MIN_DRIFT_BATCHES,
    ChannelDrift,
    WatermarkAlignment,
    channel_drifts,
    meeting_edges,
    waiting_edges,
)
from runtime.core.subtask.watermark_valve import WatermarkValve
from tests.core.builders import edge, operator, sink, source
from tests.core.subtask.drift import WindowStub

OWN, OTHER, THIRD = ChannelId(0, 0, 0), ChannelId(0, 1, 0), ChannelId(0, 2, 0)
PANE_MS = 10


def heard(position: int, **times: int) -> ChannelDrift:
    watermarks = WatermarkValve([OWN, OTHER, THIRD])
    hearing = ChannelDrift(WindowStub(watermarks), OWN, PANE_MS)
    read_on(hearing, position)
    for name, time in times.items():
        watermarks.advance({"other": OTHER, "third": THIRD}[name], time)
    return hearing


def read_on(hearing: ChannelDrift, time: int) -> None:
    """So many batches that what was before them is forgotten."""
    hearing.meeting.watermarks.advance(OWN, time)
    for _ in range(MIN_DRIFT_BATCHES):
        hearing.on_batch()


@pytest.mark.parametrize(("position", "too_far"), [(0, False), (60, False), (61, True)])
def test_it_may_be_a_pane_ahead_of_the_last_of_the_others(position: int, too_far: bool) -> None:
    assert WatermarkAlignment([heard(position, other=50, third=80)]).exceeds_drift is too_far


def test_it_may_be_some_batches_ahead_however_long_these_are() -> None:
    """A batch may be longer than a pane: taking turns after each would cost more than it saves."""
    hearing = heard(50, other=50, third=50)
    for _ in range(MIN_DRIFT_BATCHES):
        assert not hearing.exceeds_drift
        hearing.on_batch()
        hearing.meeting.watermarks.advance(OWN, hearing.meeting.watermarks.watermark_of(OWN) + 1_000)
    hearing.on_batch()
    assert hearing.exceeds_drift
    hearing.meeting.watermarks.advance(OTHER, 1_050)
    hearing.meeting.watermarks.advance(THIRD, 1_050)
    assert not hearing.exceeds_drift


def test_who_is_idle_or_at_its_end_holds_nobody_up() -> None:
    hearing = heard(500, other=50, third=400)
    results = [hearing.exceeds_drift]
    hearing.meeting.watermarks.mark_idle(OTHER)
    results.append(hearing.exceeds_drift)
    hearing.meeting.watermarks.advance(THIRD, MAX_WATERMARK)
    results.append(hearing.exceeds_drift)
    hearing.meeting.watermarks.advance(OTHER, 60)
    results.append(hearing.exceeds_drift)
    assert results == [True, True, False, True]


def test_one_that_has_not_spoken_yet_is_waited_for() -> None:
    assert WatermarkAlignment([heard(500, third=500)]).exceeds_drift


def test_alone_it_is_never_too_far() -> None:
    watermarks = WatermarkValve([OWN])
    hearing = ChannelDrift(WindowStub(watermarks), OWN, PANE_MS)
    read_on(hearing, 1_000)
    assert not WatermarkAlignment([hearing]).exceeds_drift
    assert not WatermarkAlignment().exceeds_drift


def test_it_goes_on_while_one_of_several_windows_waits_for_it() -> None:
    ahead, behind = heard(500, other=50, third=50), heard(500, other=700, third=700)
    assert not WatermarkAlignment([ahead, behind]).exceeds_drift
    assert WatermarkAlignment([ahead, ahead]).exceeds_drift
    lead = WatermarkAlignment([behind])
    read_on(behind, 900)
    lead.on_batch()
    assert lead.exceeds_drift


# ------------------------------------------------------------ which sources


def graph(*edges: tuple[str, str, Partitioning]) -> JobGraph:
    """Streams that end nowhere lead to one more sink; edges to it come last."""
    make = {"s": source, "s2": source, "out": sink, "end": sink}
    starts = {start for start, _, _ in edges}
    dangling = dict.fromkeys(end for _, end, _ in edges if end not in starts and end != "out")
    every = [*edges, *((uid, "end", REBALANCE) for uid in dangling)]
    uids = dict.fromkeys(uid for start, end, _ in every for uid in (start, end))
    return JobGraph(tuple(make.get(uid, operator)(uid) for uid in uids), tuple(edge(*parts) for parts in every), 4)


FORWARD, HASH, REBALANCE = Partitioning.FORWARD, Partitioning.HASH, Partitioning.REBALANCE


@pytest.mark.parametrize(
    ("edges", "into_windows", "ways"),
    [
        ([("s", "window", HASH), ("window", "out", FORWARD)], {0}, (0,)),
        ([("s", "map", FORWARD), ("map", "window", HASH), ("map", "other", HASH)], {1, 2}, (1, 2)),
        ([("s", "map", FORWARD), ("map", "window", HASH), ("map", "out", FORWARD)], {1}, ()),
        ([("s", "map", FORWARD), ("map", "window", HASH), ("s", "count", HASH)], {1}, ()),
        ([("s", "map", REBALANCE), ("map", "window", HASH)], {1}, ()),
        ([("s", "out", FORWARD)], set(), ()),
    ],
    ids=["at once", "two behind a map", "a sink too", "a running count too", "dealt anew", "no window"],
)
def test_all_that_it_reads_must_wait_for_windows(
    edges: list[tuple[str, str, Partitioning]], into_windows: set[int], ways: tuple[int, ...]
) -> None:
    result = waiting_edges(graph(*edges), OperatorId("s"), dict.fromkeys(into_windows, PANE_MS))
    assert result == dict.fromkeys(ways, PANE_MS)


@pytest.mark.parametrize(
    ("edges", "meetings"),
    [
        ([("s", "count", HASH), ("count", "out", FORWARD)], (0,)),
        ([("s", "map", FORWARD), ("map", "count", HASH), ("map", "out", FORWARD)], (1,)),
        ([("s", "out", REBALANCE), ("s", "count", HASH)], (0, 1)),
        ([("s", "union", FORWARD), ("s2", "union", FORWARD), ("union", "count", HASH)], (0,)),
        ([("s", "out", FORWARD)], ()),
    ],
    ids=["a count", "behind a map", "two steps", "a union", "a sink of its own"],
)
def test_sources_meet_where_rows_of_several_subtasks_arrive(
    edges: list[tuple[str, str, Partitioning]], meetings: tuple[int, ...]
) -> None:
    assert meeting_edges(graph(*edges), OperatorId("s")) == meetings


def test_it_is_heard_by_the_windows_of_its_own_slot() -> None:
    """The second of two windows has no subtask in slot 1."""
    several = graph(("s", "map", FORWARD), ("map", "window", HASH), ("map", "other", HASH))
    window, other = SubtaskId(OperatorId("window"), 1), SubtaskId(OperatorId("other"), 0)
    windows = {window: WindowStub(WatermarkValve([])), other: WindowStub(WatermarkValve([]))}
    drifts = channel_drifts(several, SubtaskId(OperatorId("s"), 1), {1: 10, 2: 20}, windows)
    assert [(drift.meeting, drift.channel, drift.max_drift_ms) for drift in drifts] == [
        (windows[window], ChannelId(1, 1, 1), 10)
    ]
