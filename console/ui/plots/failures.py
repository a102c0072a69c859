"""The bars of failed checkpoints in the plot of durations: a failed checkpoint may last longer than the plot shows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from console import formats
from console.formats import Quantity
from console.metrics.selectors import Grid
from console.ui.plots.marks import Event
from console.ui.plots.scale import Scale
from console.ui.plots.window import Window

_LABEL_WIDTH: Final = 6.0  #: in percent of the axis


@dataclass(frozen=True, slots=True)
class FailedBar:
    """The bar of the failed checkpoints of an interval, in percent of the axis. `about`: in words.

    `label`: the duration of a bar that is cut, if it has room. The label of the last bars stands on their left.
    """

    left: float
    right: float
    about: str
    label: Quantity | None
    is_left: bool

    @property
    def width(self) -> float:
        return self.right - self.left


def failures_by_interval(
    events: Iterable[Event], counts: Sequence[int | None], grid: Grid
) -> Mapping[int, Sequence[Event]]:
    """The failed checkpoints by the interval that counts them: their own, or a neighbour, as clocks of hosts differ."""
    failures = defaultdict[int, list[Event]](list)
    for event in events:
        index = grid.index(event.at)
        near = [at for at in (index, index - 1, index + 1) if 0 <= at < len(counts) and counts[at]]
        if event.is_failure and near:
            failures[near[0]].append(event)
    return failures


def failed_bars(
    failures: Mapping[int, Sequence[Event]], took: Mapping[int, float], axis: Scale, window: Window
) -> Iterator[FailedBar]:
    """The bars of failed checkpoints. A label covers neither the scale nor another label."""
    step = timedelta(seconds=window.lines.step_s)
    free = _LABEL_WIDTH  # right of the scale
    for at in sorted(failures):
        left, right = (window.percent(window.lines.begin + place * step) for place in (at, at + 1))
        is_left = right > 100 - _LABEL_WIDTH
        begin = left - _LABEL_WIDTH if is_left else right
        has_label = took[at] > axis.most and begin >= free
        free = begin + _LABEL_WIDTH if has_label else free
        about = "; ".join(event.failure for event in failures[at])
        label = formats.duration(took[at]) if has_label else None
        yield FailedBar(left, right, about, label, is_left)
