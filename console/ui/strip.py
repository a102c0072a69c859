"""The checkpoint strip: a column per checkpoint along time, drawn as values for a template.

The distance of columns is the time between triggers up to a limit, so that a night without checkpoints does not push
the rest out of sight. Height is duration, on an axis as in the plots. A savepoint has a diamond, a failure is a cross
on a stem that is as high as it lasted, and a rule marks a new attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from statistics import median

from django.urls import reverse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from console import formats
from console.checkpoints.models import Checkpoint
from console.ui.plots import scale

PITCH = 14.0  #: distance of two columns at the median interval, which is also the minimum distance
MAX_GAP_PITCHES = 5.0  #: maximum distance of two columns, in pitches
MAX_WIDTH = 1296.0  #: of the columns: a wide page without the axis labels
_BAR = 8.0
_TOP = 18.0  #: room for diamonds
_MAX_BAR_HEIGHT = 56.0
_MIN_BAR_HEIGHT = 3.0
_FOOT = 4.0
_CROSS_HEIGHT = 11.0  #: of the top of a cross above the base, at least
_WITHOUT_BAR = ("failed", "aborted", "superseded")
_LABEL_WIDTH = 62.0
_LABEL_HEIGHT = 16.0
_MIN_TICK_DISTANCE = 7 * PITCH
_DATED_AFTER = timedelta(hours=20)
#: Seconds between labels of the axis of time.
_TICK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
HEIGHT = _TOP + _MAX_BAR_HEIGHT + _FOOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    pk: int
    x: float
    bar_x: float
    bar_y: float
    bar_height: float
    status: str
    savepoint: bool
    diamond: str
    cross: str
    restarted: bool
    about: str


@dataclass(frozen=True, slots=True)
class GridLine:
    """A line across the strip at a duration."""

    y: float
    label: formats.Quantity


@dataclass(frozen=True, slots=True)
class StripTick:
    """A round time, in UTC."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The strip. Axis labels lie right of `width` and below `height`, within `whole_width` and `whole_height`."""

    width: float
    height: float
    base: float
    bar_width: float
    aborted_y: float
    columns: tuple[Column, ...]
    first: datetime
    last: datetime
    about: str
    grid: tuple[GridLine, ...]
    ticks: tuple[StripTick, ...]

    @property
    def columns_svg(self) -> SafeString:
        """The columns as SVG, joined here: a template loop over a hundred columns takes ten times as long."""
        address = reverse("ui:checkpoint", args=[0]).removesuffix("0/")
        return mark_safe("".join(_svg(column, self, address) for column in self.columns))  # noqa: S308

    @property
    def whole_width(self) -> float:
        return self.width + _LABEL_WIDTH

    @property
    def whole_height(self) -> float:
        return self.height + _LABEL_HEIGHT


def _svg(column: Column, strip: Strip, address: str) -> str:
    """A column as a link to its checkpoint. `address`: of checkpoints, without the id."""
    if column.status == "failed":
        body = f'<path class="cross" d="{column.cross}"/>'
    elif column.status in _WITHOUT_BAR:
        body = f'<path class="aborted-mark" d="M{column.bar_x:g} {strip.aborted_y:g}h{strip.bar_width:g}"/>'
    else:
        body = (f'<rect class="bar" x="{column.bar_x:g}" y="{column.bar_y:g}" width="{strip.bar_width:g}" '
                f'height="{column.bar_height:g}"/>')  # fmt: skip
    rule = f'<line class="restart" x1="{column.x:g}" x2="{column.x:g}" y1="0" y2="{strip.height:g}"/>'
    diamond = f'<path class="diamond" d="{column.diamond}"/>'
    return (
        f'<a href="{address}{column.pk}/" id="bar-{column.pk}"><g class="{column.status}">'
        f"<title>{escape(column.about)}</title>"
        f'<rect class="hit" x="{column.x:g}" y="0" width="{PITCH:g}" height="{strip.height:g}"/>'
        f"{rule if column.restarted else ''}{body}{diamond if column.savepoint else ''}</g></a>"
    )


def strip(rows: Sequence[Checkpoint]) -> Strip | None:
    """The strip of `rows`, which may be in any order; None if there are none. Old rows without room are left out."""
    ordered = sorted(rows, key=lambda row: row.number)
    if not ordered:
        return None
    places = _places(ordered)
    left = next(x for x in places if places[-1] + PITCH - x <= MAX_WIDTH)
    ordered, places = ordered[places.index(left) :], [round(x - left, 1) for x in places if x >= left]
    longest = max((row.duration_ms or 0 for row in ordered if row.outcome not in _WITHOUT_BAR), default=0)
    axis = scale.durations(longest) if longest else None
    before = [ordered[0], *ordered]
    columns = tuple(
        _column(x, row, axis, restarted=row.token != older.token)
        for x, row, older in zip(places, ordered, before, strict=False)
    )
    return Strip(
        width=columns[-1].x + PITCH,
        height=HEIGHT,
        base=_TOP + _MAX_BAR_HEIGHT,
        bar_width=_BAR,
        aborted_y=_TOP + _MAX_BAR_HEIGHT - 2,
        columns=columns,
        first=ordered[0].triggered_at,
        last=ordered[-1].triggered_at,
        about=_description(ordered, longest),
        grid=_grid(axis),
        ticks=_ticks(columns, ordered),
    )


def _grid(axis: scale.Scale | None) -> tuple[GridLine, ...]:
    """Lines at the end and at half of the axis."""
    if axis is None:
        return ()
    base = _TOP + _MAX_BAR_HEIGHT
    return tuple(
        GridLine(base - _MAX_BAR_HEIGHT * share, label) for share, label in zip((1.0, 0.5), axis.labels, strict=True)
    )


def _ticks(columns: Sequence[Column], rows: Sequence[Checkpoint]) -> tuple[StripTick, ...]:
    """Round times between the triggers, whose labels do not touch each other."""
    form = "%m-%d %H:%M" if rows[-1].triggered_at - rows[0].triggered_at > _DATED_AFTER else "%H:%M:%S"
    step_s = _tick_step_s(rows)
    ticks: list[StripTick] = []
    for (left, earlier), (right, row) in pairwise(zip(columns, rows, strict=True)):
        from_s, to_s = earlier.triggered_at.timestamp(), row.triggered_at.timestamp()
        at_s = to_s // step_s * step_s
        if at_s <= from_s:
            continue
        x = round(left.x + (right.x - left.x) * (at_s - from_s) / (to_s - from_s) + PITCH / 2, 1)
        if not ticks or x - ticks[-1].x >= _MIN_TICK_DISTANCE:
            ticks.append(StripTick(x, f"{datetime.fromtimestamp(at_s, UTC):{form}}"))
    return tuple(ticks)


def _tick_step_s(rows: Sequence[Checkpoint]) -> int:
    """The shortest round time that is wide enough for a label, at the median interval between triggers."""
    least_s = _usual_s(rows) * _MIN_TICK_DISTANCE / PITCH
    return next((step for step in _TICK_STEPS_S if step >= least_s), _TICK_STEPS_S[-1])


def _usual_s(rows: Sequence[Checkpoint]) -> float:
    return median([gap.total_seconds() for gap in _gaps(rows)]) if len(rows) > 1 else 0.0


def _gaps(rows: Sequence[Checkpoint]) -> list[timedelta]:
    return [later.triggered_at - row.triggered_at for row, later in pairwise(rows)]


def _places(rows: Sequence[Checkpoint]) -> list[float]:
    """The left edge of each column. The median interval between triggers is drawn as `PITCH`."""
    gaps, usual_s = [gap.total_seconds() for gap in _gaps(rows)], _usual_s(rows)
    steps = [PITCH * min(max(gap / usual_s, 1.0), MAX_GAP_PITCHES) if usual_s > 0 else PITCH for gap in gaps]
    return [round(x, 1) for x in accumulate(steps, initial=0.0)]


def _column(x: float, row: Checkpoint, axis: scale.Scale | None, *, restarted: bool) -> Column:
    middle = x + PITCH / 2
    base, height = _TOP + _MAX_BAR_HEIGHT, _height(row, axis)
    y = base - height
    return Column(
        pk=row.pk,
        x=x,
        bar_x=x + (PITCH - _BAR) / 2,
        bar_y=round(y, 1),
        bar_height=round(height, 1),
        status=row.outcome,
        savepoint=row.kind != "checkpoint",
        diamond=f"M{middle:g} {y - 14:g}l5 5l-5 5l-5 -5z",
        cross=f"M{middle - 3:g} {y:g}l6 6m0 -6l-6 6m3 -3V{base:g}",
        restarted=restarted,
        about=_sentence(row, restarted=restarted),
    )


def _height(row: Checkpoint, axis: scale.Scale | None) -> float:
    """The height of a bar, or of a cross and its stem, at most that of the axis, which is of those with a bar."""
    if row.outcome == "failed":
        least = _CROSS_HEIGHT
    elif row.outcome in _WITHOUT_BAR:
        return 0.0
    else:
        least = _MIN_BAR_HEIGHT
    if row.outcome == "in_progress" or axis is None:
        return least
    return max(least, _MAX_BAR_HEIGHT * min(1.0, row.took_ms(row.triggered_at) / axis.most))


def _sentence(row: Checkpoint, *, restarted: bool) -> str:
    took = f", {formats.duration(row.duration_ms)}" if row.duration_ms is not None else ""
    why = f": {row.reason.replace('_', ' ')}" if row.reason else ""
    first = " (first of a new attempt)" if restarted else ""
    return f"{row}, {row.outcome.replace('_', ' ')}{took}{why}{first}"


def _description(rows: Sequence[Checkpoint], longest: int) -> str:
    failed, aborted, superseded = (sum(row.outcome == outcome for row in rows) for outcome in _WITHOUT_BAR)
    replaced = f", {superseded} superseded" if superseded else ""
    most = f", longest {formats.duration(longest)}" if longest else ""
    savepoints = sum(row.kind != "checkpoint" for row in rows)
    return (f"Checkpoints {rows[0].number} to {rows[-1].number}: {savepoints} savepoints, {failed} failed, "
            f"{aborted} aborted{replaced}{most}. The table below shows the same data.")  # fmt: skip
