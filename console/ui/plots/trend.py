"""The plots of the trend page: percentiles of the duration and the size of checkpoints, a point per day."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from console import formats
from console.checkpoints.trend import DayTrend
from console.formats import Quantity
from console.ui.plots import scale, shapes
from console.ui.plots.scale import Scale
from console.ui.plots.timeline import Plot, Series

MAX_TICKS: Final = 7
MIN_DAYS: Final = 2  #: with checkpoints


@dataclass(frozen=True, slots=True)
class DayTick:
    """A label of the axis; `at` is the left edge of its day in percent."""

    day: date
    at: float


@dataclass(frozen=True, slots=True)
class Trend:
    plots: tuple[Plot, ...]
    ticks: tuple[DayTick, ...]
    sentence: str


def trend(days: Sequence[DayTrend]) -> Trend:
    """The plots of `days`, oldest first. Days without a completed checkpoint interrupt the lines.

    A single day with checkpoints has no plots: its line would be a dot.
    """
    if sum(day.checkpoints > 0 for day in days) < MIN_DAYS:
        return Trend((), (), _sentence(days))
    step = -(-len(days) // MAX_TICKS)
    ticks = tuple(DayTick(days[at].day, round(at / len(days) * 100, 3)) for at in range(0, len(days), step))
    plots = (
        _plot("duration", "Duration", "ms", days, scale.durations, formats.duration),
        _plot("size", "Full size", "bytes", days, scale.sizes, formats.size),
    )
    return Trend(plots, ticks, _sentence(days))


def _plot(
    key: str, title: str, unit: str, days: Sequence[DayTrend], axis: Callable[[float], Scale],
    write: Callable[[Any], Quantity],
) -> Plot:  # fmt: skip
    p50, p95 = ([getattr(day, f"{key}_{name}_{unit}") for day in days] for name in ("p50", "p95"))
    points = [value for value in p95 if value is not None]
    y_scale = axis(max(points, default=0))
    layers = (
        ("line out", shapes.line(p95, y_scale.most)),
        ("area state", shapes.area(p50, y_scale.most)),
        ("line state", shapes.line(p50, y_scale.most)),
    )
    series = tuple(
        Series(kind, label, write(next((value for value in reversed(values) if value is not None), None)), "")
        for kind, label, values in (("state", "median, newest day", p50), ("out", "95th percentile", p95))
    )
    drawn = tuple((name, path) for name, path in layers if path)
    return Plot(key, title, y_scale, f"0 0 {len(days)} {shapes.HEIGHT}", drawn, series, height=120)


def _sentence(days: Sequence[DayTrend]) -> str:
    active_days = [day for day in days if day.checkpoints]
    if not active_days:
        return "No checkpoint has completed in this time."
    first, last = active_days[0], active_days[-1]
    if first is last:
        return f"Checkpoints have completed on {last.day} only, so there is no trend yet."
    duration = _change(first.duration_p95_ms, last.duration_p95_ms, formats.duration)
    size = _change(first.size_p95_bytes, last.size_p95_bytes, formats.size)
    return (
        f"From {first.day} to {last.day}, the 95th percentile of the duration {duration}, and that of the full size "
        f"{size}."
    )


def _change(first: int | None, last: int | None, write: Callable[[int | None], Quantity]) -> str:
    before, after = str(write(first)), str(write(last))
    if before == after:
        return f"stayed at {after}"
    return f"{'rose' if (last or 0) > (first or 0) else 'fell'} from {before} to {after}"
