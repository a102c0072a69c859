"""The Gantt chart of a checkpoint: a lane per subtask on the time since the trigger, as values for a template.

Positions are percentages of the time axis, so that the chart fits every width without a script. The marks of a lane are
joined here: template loops over the marks of 96 lanes would take most of the time of the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from django.utils.safestring import SafeString, mark_safe

from console import formats
from console.checkpoints.lanes import PHASE_NAMES, Lane
from runtime.core.checkpoint.acknowledgements import PHASES

MAX_LANES: Final = 96  #: of all operators together; a page of a single operator has all its lanes
MAX_TICKS: Final = 5
_ROOM_FOR_END: Final = 0.85  #: of the axis: the rest is left to the label of its end
_STEPS: Final = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase of a lane, from `x` over `width`, in percent."""

    phase: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class DrawnLane:
    lane: Lane
    bars: tuple[Bar, ...]
    about: str

    @property
    def marks(self) -> SafeString:
        """The bars as SVG."""
        return mark_safe("".join(map(_rectangle, self.bars)))  # noqa: S308


@dataclass(frozen=True, slots=True)
class Group:
    """The lanes of an operator. `hidden` lanes were faster than the shown lanes."""

    uid: str
    name: str
    lanes: tuple[DrawnLane, ...]
    hidden: int


@dataclass(frozen=True, slots=True)
class GanttTick:
    x: str
    text: str


@dataclass(frozen=True, slots=True)
class Gantt:
    """`commit`: from the last acknowledgement to the record of a completed checkpoint."""

    groups: tuple[Group, ...]
    ticks: tuple[GanttTick, ...]
    commit: Bar | None
    commit_ms: float

    @property
    def grid(self) -> SafeString:
        """The lines at the ticks as SVG, behind each lane."""
        lines = (f'<line x1="{tick.x}" x2="{tick.x}" y1="0" y2="100%"/>' for tick in self.ticks)
        return mark_safe("".join(lines))  # noqa: S308


def gantt(
    lanes: Sequence[Lane], names: Mapping[str, str], took_ms: float, *, completed: bool, only: str = ""
) -> Gantt | None:
    """The chart of `lanes`, in their order. `took_ms` is the length of the axis; `only` shows a single operator.

    None if there are no lanes.
    """
    if not lanes:
        return None
    acknowledged_ms = max((lane.at_ms or 0 for lane in lanes), default=0)
    span_ms = max(took_ms, acknowledged_ms, 1.0)
    operators = [(uid, list(group)) for uid, group in groupby(lanes, attrgetter("operator"))]
    selection = [(uid, group) for uid, group in operators if uid == only] or operators
    limit = len(lanes) if len(selection) == 1 else max(1, MAX_LANES // len(selection))
    commit_ms = max(0.0, span_ms - acknowledged_ms)
    return Gantt(
        groups=tuple(_group(uid, names.get(uid, uid), group, limit, span_ms) for uid, group in selection),
        ticks=_ticks(span_ms),
        commit=_bar("commit", acknowledged_ms, commit_ms, span_ms) if completed else None,
        commit_ms=commit_ms,
    )


def _group(uid: str, name: str, lanes: list[Lane], limit: int, span_ms: float) -> Group:
    slowest = sorted(lanes, key=lambda lane: span_ms if lane.at_ms is None else lane.at_ms, reverse=True)[:limit]
    selection = sorted(slowest, key=lambda lane: lane.index)
    return Group(uid, name, tuple(_draw(lane, span_ms) for lane in selection), len(lanes) - len(selection))


def _draw(lane: Lane, span_ms: float) -> DrawnLane:
    if lane.at_ms is None:
        return DrawnLane(lane, (_bar("missing", 0.0, span_ms, span_ms),), "no acknowledgement")
    bars, x = [], 0.0
    for phase, ms in zip(PHASES, lane.phases_ms, strict=True):
        if ms > 0:
            bars.append(_bar(phase, x, min(ms, span_ms - x), span_ms))
        x = min(x + ms, span_ms)
    parts = [
        f"{name} {formats.duration(ms)}"
        for name, ms in zip(PHASE_NAMES.values(), lane.phases_ms, strict=True)
        if ms > 0
    ]
    return DrawnLane(lane, tuple(bars), ", ".join(parts) or "no measurable phase")


def _bar(phase: str, x_ms: float, ms: float, span_ms: float) -> Bar:
    return Bar(phase, _percent(x_ms, span_ms), _percent(ms, span_ms))


def _rectangle(bar: Bar) -> str:
    meaning = bar.phase if bar.phase == "missing" else f"phase {bar.phase}"
    return f'<rect class="{meaning}" x="{bar.x}" width="{bar.width}" y="3" height="10"/>'


def _percent(ms: float, span_ms: float) -> str:
    return f"{100 * ms / span_ms:.2f}%"


def _ticks(span_ms: float) -> tuple[GanttTick, ...]:
    """Round times from 0, and the end of the axis; at most `MAX_TICKS`."""
    step = next(
        base * 10.0**power for power in range(-1, 12) for base in _STEPS if span_ms / (base * 10.0**power) < MAX_TICKS
    )
    rounded = [place * step for place in range(MAX_TICKS - 1) if place * step <= span_ms * _ROOM_FOR_END]
    times = [*rounded, span_ms]
    return tuple(GanttTick(_percent(ms, span_ms), "0" if ms == 0 else str(formats.duration(ms))) for ms in times)
