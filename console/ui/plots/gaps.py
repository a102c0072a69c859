"""Gaps of the history on the axis of the plots."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from console.metrics.gaps import Gap
from console.ui.plots.window import Window

NO_NUMBERS: Final = "no numbers"
_MIN_LABELLED: Final = 15.0  #: width of a gap with a label, in percent of the axis


@dataclass(frozen=True, slots=True)
class DrawnGap:
    """Left edge and width are percentages of the axis."""

    begin: datetime
    end: datetime
    left: float
    width: float

    @property
    def middle(self) -> float:
        return round(self.left + self.width / 2, 3)

    @property
    def has_label(self) -> bool:
        return self.width >= _MIN_LABELLED


def draw_gaps(gaps: Iterable[Gap], window: Window) -> tuple[DrawnGap, ...]:
    """The gaps on the axis of `window`; the grid of its numbers may end later."""
    return tuple(_draw(gap, window) for gap in gaps)


def _draw(gap: Gap, window: Window) -> DrawnGap:
    left, right = window.percent(gap.begin), min(window.percent(gap.end), 100.0)
    return DrawnGap(gap.begin, gap.end, left, round(right - left, 3))
