"""Watermark alignment: pauses a source subtask whose watermark is ahead of its siblings' watermarks. (FLIP-182.)

A window fires at the watermark of its slowest channel. Until then, rows of faster sources stay in window state, and
every checkpoint writes them. Alignment concerns sources all of whose rows wait for windows, and sources whose author
names a drift. Such a source is paused while its watermark of `MIN_DRIFT_BATCHES` batches ago is ahead of the slowest
sibling by more than its drift. Without a drift of the author, this is a pane, or the gap of a session. Windows that
receive pre-aggregated rows hold an entry per key and window, so sources may lead them by more batches
(`PRE_AGGREGATED_DRIFT_BATCHES`): subtasks that read different files of a folder are then paused less often.

Drift is computed from the per-channel watermarks that window subtasks in the same slot already hold, so alignment needs
no extra messages. Sources never pause each other: the slowest is always read. Idle and ended channels pause no source.
An idle source is still polled, since event time advances without it. A paused source takes part in checkpoints.
"""

from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.messages import MIN_WATERMARK
from runtime.core.subtask.watermark_valve import WatermarkValve

#: always permitted lead of a source, in batches; with a smaller lead, sources would pause after each batch
MIN_DRIFT_BATCHES: Final = 4
PRE_AGGREGATED_DRIFT_BATCHES: Final = 16  #: the same before windows that receive pre-aggregated rows
WAITED_COUNTER: Final = "waited_for_slower_sources_ms"  #: total time for which a source has been paused


class MeetingSubtask(Protocol):
    """The part of a `Subtask` that alignment reads; it receives the rows of a source and of its siblings."""

    watermarks: WatermarkValve

    @property
    def blocked_channels(self) -> Collection[ChannelId]:
        """Channels that are blocked by a barrier in alignment."""


@dataclass(slots=True)
class ChannelDrift:
    """The drift of a source from its siblings, as seen by a subtask in the same slot.

    Args:
        meeting: the subtask that receives the rows of the source and of its siblings.
        channel: its input channel that carries the rows of the source.
        max_drift_ms: the permitted drift in milliseconds of event time.
        min_batches: the always permitted lead in batches.
    """

    meeting: MeetingSubtask
    channel: ChannelId
    max_drift_ms: int
    min_batches: int = MIN_DRIFT_BATCHES
    _past_watermarks: deque[int] = field(init=False)  #: watermarks before the latest batches

    def __post_init__(self) -> None:
        self._past_watermarks = deque(maxlen=self.min_batches)

    def on_batch(self) -> None:
        self._past_watermarks.append(self.meeting.watermarks.watermark_of(self.channel))

    @property
    def exceeds_drift(self) -> bool:
        watermarks = self.meeting.watermarks.active_watermarks(self.channel)
        if not watermarks or len(self._past_watermarks) < self.min_batches:
            return False
        return self._past_watermarks[0] - min(watermarks) > self.max_drift_ms

    @property
    def min_watermark(self) -> int:
        """The smallest watermark of a sibling."""
        return min(self.meeting.watermarks.active_watermarks(self.channel), default=MIN_WATERMARK)

    @property
    def max_watermark(self) -> int:
        """The largest watermark of a sibling whose barrier has not arrived yet."""
        beside = {self.channel, *self.meeting.blocked_channels}
        return max(self.meeting.watermarks.active_watermarks(*beside), default=MIN_WATERMARK)


class WatermarkAlignment:
    """Mutable, owned by a source subtask. Check `exceeds_drift` before each poll; call `on_batch` after each batch."""

    def __init__(self, drifts: Sequence[ChannelDrift] = ()) -> None:
        self._drifts = drifts

    @property
    def exceeds_drift(self) -> bool:
        """Whether every subtask that receives the source's rows waits for a slower sibling."""
        return bool(self._drifts) and all(drift.exceeds_drift for drift in self._drifts)

    @property
    def min_watermarks(self) -> tuple[int, ...]:
        """The smallest sibling watermark at each subtask that receives the source's rows."""
        return tuple(drift.min_watermark for drift in self._drifts)

    def on_batch(self) -> None:
        for drift in self._drifts:
            drift.on_batch()


def channel_drifts(
    graph: JobGraph,
    source: SubtaskId,
    max_drifts_ms: Mapping[int, int],
    machines: Mapping[SubtaskId, MeetingSubtask],
    pre_aggregated: Container[int] = (),
) -> list[ChannelDrift]:
    """The drift of a source subtask at each edge of `max_drifts_ms` whose target has a subtask in its slot.

    Args:
        max_drifts_ms: permitted drift by edge number; see `waiting_edges` and `meeting_edges`.
        machines: the subtasks in the slot of `source`.
        pre_aggregated: numbers of the edges whose rows are pre-aggregated.
    """
    drifts = []
    for number, max_drift_ms in max_drifts_ms.items():
        meeting = machines.get(SubtaskId(graph.edges[number].target, source.index))
        if meeting is not None:
            min_batches = PRE_AGGREGATED_DRIFT_BATCHES if number in pre_aggregated else MIN_DRIFT_BATCHES
            channel = ChannelId(number, source.index, source.index)
            drifts.append(ChannelDrift(meeting, channel, max_drift_ms, min_batches))
    return drifts


def waiting_edges(graph: JobGraph, source: OperatorId, drifts_ms: Mapping[int, int]) -> dict[int, int]:
    """The edges by which the rows of `source` enter windows; empty if some rows reach an output without a window.

    Args:
        drifts_ms: the permitted drift of all edges into windows, by edge number. The result is a part of it.
    """
    edges: dict[int, int] = {}
    for number, edge in enumerate(graph.edges):
        if edge.source != source:
            continue
        ways = {number: drifts_ms[number]} if number in drifts_ms else {}
        if not ways and edge.partitioning is Partitioning.FORWARD and not edge.feedback:
            ways = waiting_edges(graph, edge.target, drifts_ms)
        if not ways:
            return {}
        edges |= ways
    return edges


def meeting_edges(graph: JobGraph, source: OperatorId) -> tuple[int, ...]:
    """The first edge of each way from `source` at whose target its rows meet rows of siblings or of other sources."""
    numbers: list[int] = []
    for number, edge in enumerate(graph.edges):
        if edge.source != source or edge.feedback:
            continue
        inputs = sum(each.target == edge.target and not each.build and not each.feedback for each in graph.edges)
        if edge.partitioning is Partitioning.FORWARD and inputs == 1:
            numbers += meeting_edges(graph, edge.target)
        else:
            numbers.append(number)
    return tuple(numbers)
