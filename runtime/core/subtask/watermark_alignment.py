"""Watermark alignment: pauses a source subtask whose watermark is ahead of its siblings' watermarks. (FLIP-182.)

A window fires at the watermark of its slowest channel. Until then, rows of faster sources stay in window state, and
every checkpoint writes them. Alignment concerns sources all of whose rows wait for windows. Such a source is paused
while its watermark of `MIN_DRIFT_BATCHES` batches ago is ahead of the slowest sibling by more than a pane.

Drift is computed from the per-channel watermarks that window subtasks in the same slot already hold, so alignment needs
no extra messages. Sources never pause each other: the slowest is always read. Idle and ended channels pause no source.
An idle source is still polled, since event time advances without it. A paused source takes part in checkpoints.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.messages import MIN_WATERMARK
from runtime.core.subtask.watermark_valve import WatermarkValve

#: always permitted lead of a source, in batches; with a smaller lead, sources would pause after each batch
MIN_DRIFT_BATCHES: Final = 4


class WindowSubtask(Protocol):
    """The part of a window's `Subtask` that alignment reads."""

    watermarks: WatermarkValve

    @property
    def blocked_channels(self) -> Collection[ChannelId]:
        """Channels that are blocked by a barrier in alignment."""


@dataclass(slots=True)
class ChannelDrift:
    """The drift of a source from its siblings, as seen by a window subtask in the same slot.

    Args:
        channel: the window's input channel that carries the rows of the source.
        pane_ms: length of a pane in milliseconds of event time: the permitted drift.
    """

    window: WindowSubtask
    channel: ChannelId
    pane_ms: int
    #: watermarks before the latest batches
    _past_watermarks: deque[int] = field(default_factory=lambda: deque(maxlen=MIN_DRIFT_BATCHES))

    def on_batch(self) -> None:
        self._past_watermarks.append(self.window.watermarks.watermark_of(self.channel))

    @property
    def exceeds_drift(self) -> bool:
        others = self.window.watermarks.active_watermarks(self.channel)
        if not others or len(self._past_watermarks) < MIN_DRIFT_BATCHES:
            return False
        return self._past_watermarks[0] - min(others) > self.pane_ms

    @property
    def min_watermark(self) -> int:
        """The smallest watermark of a sibling."""
        return min(self.window.watermarks.active_watermarks(self.channel), default=MIN_WATERMARK)

    @property
    def max_watermark(self) -> int:
        """The largest watermark of a sibling whose barrier has not arrived yet."""
        beside = {self.channel, *self.window.blocked_channels}
        return max(self.window.watermarks.active_watermarks(*beside), default=MIN_WATERMARK)


class WatermarkAlignment:
    """Mutable, owned by a source subtask. Check `exceeds_drift` before each poll; call `on_batch` after each batch."""

    def __init__(self, drifts: Sequence[ChannelDrift] = ()) -> None:
        self._drifts = drifts

    @property
    def exceeds_drift(self) -> bool:
        """Whether every window that receives the source's rows waits for a slower sibling."""
        return bool(self._drifts) and all(drift.exceeds_drift for drift in self._drifts)

    @property
    def min_watermarks(self) -> tuple[int, ...]:
        """The smallest sibling watermark of each window."""
        return tuple(drift.min_watermark for drift in self._drifts)

    def on_batch(self) -> None:
        for drift in self._drifts:
            drift.on_batch()


def channel_drifts(
    graph: JobGraph, source: SubtaskId, panes_ms: Mapping[int, int], machines: Mapping[SubtaskId, WindowSubtask]
) -> list[ChannelDrift]:
    """The drift of a source subtask at each window in its slot.

    Args:
        panes_ms: pane length by edge number, for all edges into windows.
        machines: the subtasks in the slot of `source`.
    """
    found = []
    for number in window_edges(graph, source.operator, panes_ms):
        window = machines.get(SubtaskId(graph.edges[number].target, source.index))
        if window is not None:
            found.append(ChannelDrift(window, ChannelId(number, source.index, source.index), panes_ms[number]))
    return found


def window_edges(graph: JobGraph, source: OperatorId, into_windows: Collection[int]) -> tuple[int, ...]:
    """The edges by which the rows of `source` enter windows; empty if some rows reach an output without a window.

    Args:
        into_windows: the numbers of all edges into windows.
    """
    found: list[int] = []
    for number, edge in enumerate(graph.edges):
        if edge.source != source:
            continue
        ways: tuple[int, ...] = (number,) if number in into_windows else ()
        if not ways and edge.partitioning is Partitioning.FORWARD and not edge.feedback:
            ways = window_edges(graph, edge.target, into_windows)
        if not ways:
            return ()
        found += ways
    return tuple(found)
