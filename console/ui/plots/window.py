"""The time that the plots of a job show, and the interval chosen in it, both from the address of the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import QuerySet

from console.checkpoints.models import Checkpoint
from console.metrics.selectors import Grid, choose_grid
from console.ui.paging import moment

LINE_POINTS: Final = 180  #: at most, of a line
CELL_COLUMNS: Final = 90  #: at most, of the heat map
_FIRST_YEAR: Final = 1980
_MIN_LABEL_GAP: Final = 0.08  #: of the window's length, between a tick and the right edge: its label would be cut


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time that the plots can show. The window moves on every `refresh`."""

    name: str
    label: str
    length: timedelta
    tick: timedelta
    refresh: timedelta
    tick_format: str


SPANS: Final = (
    Span("15min", "15 min", timedelta(minutes=15), timedelta(minutes=3), timedelta(seconds=10), "%H:%M"),
    Span("6h", "6 h", timedelta(hours=6), timedelta(hours=1), timedelta(minutes=2), "%H:%M"),
    Span("7d", "7 d", timedelta(days=7), timedelta(days=1), timedelta(hours=1), "%b %d"),
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """An interval of time that a user has chosen; it limits the table of checkpoints."""

    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of the time axis, and the interval from it to the next tick, or to the end of the window. `at` and
    `width` are percentages of the axis.
    """

    at: float
    width: float
    label: str
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Window:
    """The time from `begin` to `end`. `is_moving`: it ends at the present."""

    span: Span
    begin: datetime
    end: datetime
    is_moving: bool

    @property
    def lines(self) -> Grid:
        """The grid of lines and bars."""
        return self._grid(LINE_POINTS)

    @property
    def cells(self) -> Grid:
        """The grid of the heat map, which has a line for each operator."""
        return self._grid(CELL_COLUMNS)

    def percent(self, at: datetime) -> float:
        """The place of a time on the axis."""
        return round((at - self.begin) / (self.end - self.begin) * 100, 3)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        first = _ceil(self.begin, self.span.tick)
        times = [first + n * self.span.tick for n in range(int(self.span.length / self.span.tick) + 1)]
        inside = [at for at in times if at < self.end]
        ticks = []
        for at, following in zip(inside, [*inside[1:], self.end], strict=True):
            width = (following - at) / self.span.length
            label = f"{at:{self.span.tick_format}}" if width > _MIN_LABEL_GAP else ""
            ticks.append(Tick(self.percent(at), round(width * 100, 3), label, at, following))
        return tuple(ticks)

    def _grid(self, most: int) -> Grid:
        wanted_s = self.span.length.total_seconds() / most
        return choose_grid(self.begin, self.end, int(wanted_s), 1, self.end)


def window(query: Mapping[str, str], latest: datetime) -> Window:
    """The window that `query` asks for: `span`, and `until` for the past. `latest`: the last moment with numbers."""
    span = next((span for span in SPANS if span.name == query.get("span")), SPANS[0])
    until = moment(query.get("until"))
    if until is not None and (until >= latest or until.year < _FIRST_YEAR):
        until = None
    end = _ceil(until or latest, span.refresh)
    return Window(span, end - span.length, end, until is None)


def chosen(query: Mapping[str, str]) -> Chosen | None:
    """The interval `from`, `to` of `query`; None if it is incomplete or malformed."""
    begin, end = moment(query.get("from")), moment(query.get("to"))
    return Chosen(begin, end) if begin and end and begin < end else None


def checkpoints_of(table: QuerySet[Checkpoint], interval: Chosen | None) -> QuerySet[Checkpoint]:
    """The checkpoints of `table` that were triggered within `interval`, if any is chosen."""
    if interval is None:
        return table
    return table.filter(triggered_at__gte=interval.begin, triggered_at__lt=interval.end)


def _ceil(at: datetime, step: timedelta) -> datetime:
    seconds = int(step.total_seconds())
    return datetime.fromtimestamp(-(-at.timestamp() // seconds) * seconds, UTC)
