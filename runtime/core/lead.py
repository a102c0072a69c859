"""Whether a source is so far ahead of others in event time that it should wait for them. (FLIP-182.)

Windows fire once the last of their sources has come by. What faster ones bring until then lies in state, and every
checkpoint writes it. So a source all of whose rows wait for windows is not read on while it is ahead of the others by
more than a pane, or by a few batches where these take longer than a pane.

Compared is what the windows of the source's own slot have heard of it and of its siblings, so nothing is sent for it.
Two never wait for each other: one of them is behind, and is read on. An input that is idle or at its end holds nobody
up, and one that is idle itself is asked on: event time goes on without it. Barriers are no matter of this: a source
that waits takes part in checkpoints.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from runtime.core.graph import JobGraph, Partitioning
from runtime.core.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.messages import MIN_WATERMARK
from runtime.core.watermarks import Watermarks

BATCHES: Final = 4  #: that a source may be ahead in any case, or sources would wait for each other after each


class Window(Protocol):
    """What is asked of a subtask of a window (`core/subtask`)."""

    watermarks: Watermarks

    @property
    def blocked(self) -> Collection[ChannelId]:
        """Channels whose barrier has come, and others have not."""


@dataclass(slots=True)
class Hearing:
    """What one subtask of a window hears of a source in its slot, and of the source's siblings.

    Args:
        channel: by which the source's rows come.
        pane_ms: of event time, by which the source may be ahead.
    """

    window: Window
    channel: ChannelId
    pane_ms: int
    _past: deque[int] = field(default_factory=lambda: deque(maxlen=BATCHES))  #: event time before the last batches

    def polled(self) -> None:
        self._past.append(self.window.watermarks.time(self.channel))

    @property
    def too_far(self) -> bool:
        others = self.window.watermarks.others(self.channel)
        if not others or len(self._past) < BATCHES:
            return False
        return self._past[0] - min(others) > self.pane_ms

    @property
    def slowest(self) -> int:
        """The event time of the sibling that is furthest behind."""
        return min(self.window.watermarks.others(self.channel), default=MIN_WATERMARK)

    @property
    def furthest(self) -> int:
        """The event time of the sibling that has come furthest, of those whose barrier has not come yet."""
        beside = {self.channel, *self.window.blocked}
        return max(self.window.watermarks.others(*beside), default=MIN_WATERMARK)


class Lead:
    """One source subtask's. Ask `too_far` before each poll, and say `polled` when it has given a batch."""

    def __init__(self, hearings: Sequence[Hearing] = ()) -> None:
        self._hearings = hearings

    @property
    def too_far(self) -> bool:
        """Whether nothing that waits for its rows could go on with more of them."""
        return bool(self._hearings) and all(hearing.too_far for hearing in self._hearings)

    @property
    def slowest(self) -> tuple[int, ...]:
        """The event times that the source waits for, by window."""
        return tuple(hearing.slowest for hearing in self._hearings)

    def polled(self) -> None:
        for hearing in self._hearings:
            hearing.polled()


def hearings(
    graph: JobGraph, source: SubtaskId, panes_ms: Mapping[int, int], machines: Mapping[SubtaskId, Window]
) -> list[Hearing]:
    """What the windows in the slot of a source subtask hear of it.

    Args:
        panes_ms: by number of the edge, for all edges into windows.
        machines: of the subtasks in that slot.
    """
    found = []
    for number in ways_to_windows(graph, source.operator, panes_ms):
        window = machines.get(SubtaskId(graph.edges[number].target, source.index))
        if window is not None:
            found.append(Hearing(window, ChannelId(number, source.index, source.index), panes_ms[number]))
    return found


def ways_to_windows(graph: JobGraph, source: OperatorId, into_windows: Collection[int]) -> tuple[int, ...]:
    """The edges into windows by which the rows of `source` go; none if some rows need not wait for any window.

    Args:
        into_windows: numbers of all such edges of the graph.
    """
    found: list[int] = []
    for number, edge in enumerate(graph.edges):
        if edge.source != source:
            continue
        ways: tuple[int, ...] = (number,) if number in into_windows else ()
        if not ways and edge.partitioning is Partitioning.FORWARD and not edge.feedback:
            ways = ways_to_windows(graph, edge.target, into_windows)
        if not ways:
            return ()
        found += ways
    return tuple(found)
