"""The plots of a job below its graph: records, watermark lag, load of operators, checkpoints and state, with events.

All plots share a window of time. A query finds its runs, two read the numbers, and one the events. `key` names the
content without reading it, so a poll whose browser has the plots costs none of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import blake2s
from typing import Any, Final

from django.db.models import Q

from console import formats
from console.checkpoints.lanes import PHASE_NAMES
from console.formats import MAX_LIVE_LAG_MS, Quantity
from console.jobs.models import Job, Run
from console.metrics.gaps import RunTime, find_gaps
from console.metrics.selectors import Columns, Grid, plot_history
from console.pages.selectors import PAGE_ROWS, JobPage
from console.ui.plots import scale, shapes
from console.ui.plots.failures import FailedBar, failed_bars, failures_by_interval
from console.ui.plots.gaps import DrawnGap, draw_gaps
from console.ui.plots.load import LoadPlot, highest, load_layers, load_row, mean, most_loaded
from console.ui.plots.marks import Event, ListedEvent, Mark, event_list, marks, read_events
from console.ui.plots.scale import Scale
from console.ui.plots.window import SPANS, Chosen, Span, Window, chosen, window
from runtime.core.checkpoint import acknowledgements
from runtime.core.job.lifecycle import FLOWING_STATES

_MAX_AGE: Final = timedelta(seconds=30)  #: of numbers that a legend shows as those of the present
TABLE_ROWS: Final = 30  #: at most, of the table with the same numbers
PHASES: Final = (*acknowledgements.PHASES, "commit")  #: in the order in which they happen


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a legend, with the newest value or the sum of the window, and the value of each interval as text."""

    key: str
    label: str
    newest: Quantity
    texts: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot: `layers` are (class, path), from back to front.

    `highest`: of the window, for the legend, as `highest_label`.
    """

    key: str
    title: str
    scale: Scale | None  #: None if there are no numbers to draw
    box: str  #: the viewBox that is stretched over the window
    layers: tuple[tuple[str, str], ...]
    series: tuple[Series, ...]
    note: str = ""
    height: int = 72  #: in pixels
    highest: Quantity | None = None
    highest_label: str = "highest"
    failed: tuple[FailedBar, ...] = ()

    @property
    def middle(self) -> int:
        """The grid line at half of the height; labels need 12 pixels above the plot."""
        return 12 + self.height // 2


@dataclass(frozen=True, slots=True)
class TableRow:
    """`values`: empty for a time without numbers in which a run was up."""

    begin: datetime
    values: tuple[Quantity, ...]


class Timeline:
    """The plots of the job of `page`; they are read and drawn when a template asks for them."""

    row_px: Final = 13  #: height of an operator in the heat map

    def __init__(
        self, page: JobPage, window: Window, interval: Chosen | None, now: datetime, *, has_load: bool
    ) -> None:
        self._page, self.window, self.chosen, self._now = page, window, interval, now
        self._cells = window.cells if has_load else None

    @property
    def key(self) -> str:
        """Changes with the window, and with the newest attempt, operation and version."""
        rows: tuple[Any, ...] = (*self._page.attempts[:1], *self._page.operations[:1], *self._page.runs[:1])
        newest = [(row.pk, getattr(row, "state", ""), getattr(row, "outcome", "")) for row in rows]
        version = self._page.newest_version.pk if self._page.newest_version else None
        facts = (self.window.span.name, self.window.end, self.chosen, newest, version)
        return blake2s(repr(facts).encode(), digest_size=8).hexdigest()

    @property
    def job(self) -> Job:
        return self._page.job

    @property
    def spans(self) -> tuple[Span, ...]:
        return SPANS

    @property
    def begin_ms(self) -> int:
        return _ms(self.window.begin)

    @property
    def end_ms(self) -> int:
        return _ms(self.window.end)

    @property
    def earlier(self) -> datetime:
        return self.window.end - self.window.span.length

    @property
    def later(self) -> datetime | None:
        """The end of the next window; None if that is the present one."""
        return None if self.window.is_moving else self.window.end + self.window.span.length

    @property
    def band(self) -> tuple[float, float] | None:
        """Left edge and width of the chosen interval, in percent of the axis."""
        if self.chosen is None:
            return None
        left = min(max(self.window.percent(self.chosen.begin), 0.0), 100.0)
        right = min(max(self.window.percent(self.chosen.end), 0.0), 100.0)
        return (left, round(right - left, 3)) if right > left else None

    @property
    def present(self) -> float:
        """The place of the present on the axis: intervals after it are to come."""
        return min(self.window.percent(self._now), 100.0)

    @cached_property
    def _times(self) -> list[RunTime]:
        """The runs of the job that ran within the window. The runs of the page are enough if they reach back to it."""
        newest, begin, end = self._page.runs, self.window.begin, self.window.end
        if len(newest) < PAGE_ROWS or newest[-1].created_at <= begin:
            begun = [run for run in newest if run.created_at <= end and (run.ended_at is None or run.ended_at >= begin)]
            return [RunTime(run.pk, run.started_at, run.ended_at) for run in begun]
        runs = Run.objects.filter(job=self._page.job, created_at__lte=end)
        ran = runs.filter(Q(ended_at=None) | Q(ended_at__gte=begin))
        return [RunTime(*times) for times in ran.values_list("pk", "started_at", "ended_at")]

    @cached_property
    def _history(self) -> tuple[Columns, Mapping[str, Columns]]:
        return plot_history([run.pk for run in self._times], self.window.lines, self._cells)

    @property
    def numbers(self) -> Columns:
        return self._history[0]

    @cached_property
    def has_numbers(self) -> bool:
        return any(value is not None for value in self.numbers["records_in_per_s"])

    @cached_property
    def old_since(self) -> datetime | None:
        """End of the newest numbers, if they are not those of the present; then no legend shows them."""
        run, lines = self._page.run, self.window.lines
        indexes = [at for at, value in enumerate(self.numbers["records_in_per_s"]) if value is not None]
        if not self.window.is_moving or not indexes:
            return None
        end = lines.begin + timedelta(seconds=(indexes[-1] + 1) * lines.step_s)
        is_flowing = run is not None and run.run_state in FLOWING_STATES
        return None if is_flowing and self._now - end < _MAX_AGE else min(end, self._now)

    @cached_property
    def gaps(self) -> tuple[DrawnGap, ...]:
        """Times without numbers in which a run was up."""
        gaps = find_gaps(self.numbers["records_in_per_s"], self._times, self.window.lines, self._now)
        return draw_gaps(gaps, self.window)

    @cached_property
    def _events(self) -> tuple[Event, ...]:
        return read_events(self._page.job, self.window)

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        return marks(self._events, self.window)

    @property
    def event_list(self) -> tuple[Mark | ListedEvent, ...]:
        return event_list(self._events, self.marks)

    @property
    def has_labels_below(self) -> bool:
        return any(mark.place is not None and mark.place.is_below for mark in self.marks)

    @property
    def lines_grid(self) -> tuple[int, int]:
        """Begin and step of lines and bars, in ms."""
        return _ms(self.window.lines.begin), self.window.lines.step_s * 1000

    @property
    def plots_above(self) -> tuple[Plot, ...]:
        return self._records(), self._lag()

    @property
    def plots_below(self) -> tuple[Plot, ...]:
        return self._checkpoints(), self._state()

    @cached_property
    def load(self) -> LoadPlot | None:
        grid, history = self.window.cells, self._history[1]
        operators = (self._page.version.graph or {}).get("operators", ()) if self._page.version else ()
        names = [(o["uid"], o["name"]) for o in operators if o["uid"] in history]
        names += [(uid, uid) for uid in sorted(history) if uid not in {key for key, _ in names}]
        drawn = most_loaded(names, history)
        if not drawn:
            return None
        return LoadPlot(
            box=_box(self.window, grid, len(drawn)),
            height=len(drawn) * self.row_px,
            begin_ms=_ms(grid.begin),
            step_ms=grid.step_s * 1000,
            layers=load_layers([history[uid] for uid, _ in drawn]),
            rows=tuple(load_row(at * self.row_px, name, history[uid]) for at, (uid, name) in enumerate(drawn)),
            left_out=len(names) - len(drawn),
        )

    @property
    def table(self) -> tuple[TableRow, ...]:
        """The same numbers in longer intervals: means of rates, and the highest of levels; newest first."""
        grid, numbers = self.window.lines, self.numbers
        size = -(-grid.size // TABLE_ROWS)
        rows = []
        for first in range(0, grid.size, size):
            begin = grid.begin + timedelta(seconds=first * grid.step_s)
            part = {name: values[first : first + size] for name, values in numbers.items()}
            if any(value is not None for value in part["records_in_per_s"]):
                values = tuple(write(summarize(part[name])) for name, write, summarize in _TABLE)
                rows.append(TableRow(begin, values))
            elif any(gap.begin <= begin < gap.end for gap in self.gaps):
                rows.append(TableRow(begin, ()))
        return tuple(reversed(rows))

    # ------------------------------------------------------------ plots

    def _records(self) -> Plot:
        reads, writes = self.numbers["records_in_per_s"], self.numbers["records_out_per_s"]
        axis = scale.rates(_largest([*reads, *writes]))
        layers = (("area in", shapes.area(reads, axis.most)), ("line out", shapes.line(writes, axis.most)),
                  ("line in", shapes.line(reads, axis.most)))  # fmt: skip
        series = (self._series("in", "read by sources", reads, formats.rate),
                  self._series("out", "written by sinks", writes, formats.rate))  # fmt: skip
        return self._plot("records", "Records", axis, layers, series)

    def _lag(self) -> Plot:
        event, wall = self.numbers["event_lag_ms"], self.numbers["processing_lag_ms"]
        is_historic = min((lag for lag in wall if lag is not None), default=0) >= MAX_LIVE_LAG_MS
        drawn = {"the newest record": event} if is_historic else {"the clock": wall, "the newest record": event}
        axis = scale.durations(_largest(value for values in drawn.values() for value in values))
        main, *_ = drawn.values()
        layers, series = [("area lag", shapes.area(main, axis.most))], []
        for key, (name, values) in zip(("lag", "other"), drawn.items(), strict=False):
            layers.append((f"line {key}", shapes.line(values, axis.most)))
            series.append(self._series(key, f"behind {name}", values, formats.duration))
        note = "The data is historic: its lag behind the clock is not drawn." if is_historic else ""
        most = formats.duration(highest(main))
        return self._plot("lag", "Watermark lag", axis, tuple(layers), tuple(series), note, most)

    def _checkpoints(self) -> Plot:
        lasted, failed = self.numbers["checkpoint_ms"], self.numbers["checkpoints_failed"]
        failures = failures_by_interval(self._events, failed, self.window.lines)
        took = {at: max(event.took_ms or 0.0 for event in events) for at, events in failures.items()}
        axis = scale.durations(_largest(lasted) or _largest(took.values()))
        phases = checkpoint_phases(self.numbers)
        below, layers = [0.0] * len(lasted), [("phase commit", shapes.stubs(lasted))]
        for phase in PHASES:
            layers.append((f"phase {phase}", shapes.bars(below, phases[phase], axis.most)))
            below = [foot + (value or 0.0) for foot, value in zip(below, phases[phase], strict=True)]
        heights = [(took.get(at) or axis.most) if number else None for at, number in enumerate(failed)]
        layers.append(("failed", shapes.cut_bars(heights, axis.most)))
        series = [self._series("duration", "latest", lasted, formats.duration)]
        names = PHASE_NAMES | {"commit": "commit"}
        series += [self._series(phase, names[phase], phases[phase], formats.duration) for phase in PHASES]
        if any(failed):
            total = _number(sum(number or 0 for number in failed))
            texts = _texts([number or None for number in failed], _number)
            series.append(Series("failed", "failed in this time", total, texts))
        most = formats.duration(highest(lasted))
        plot = self._plot("checkpoints", "Checkpoint duration", axis, layers, tuple(series), highest=most)
        bars = tuple(failed_bars(failures, took, axis, self.window))
        return replace(plot, highest_label="highest of completed", failed=bars)

    def _state(self) -> Plot:
        sizes = self.numbers["state_bytes"]
        axis = scale.sizes(_largest(sizes))
        layers = (("area state", shapes.area(sizes, axis.most)), ("line state", shapes.line(sizes, axis.most)))
        series = self._series("state", "all operators", sizes, formats.size)
        return self._plot("state", "State size", axis, layers, (series,))

    def _series(self, key: str, label: str, values: Sequence[Any], write: Callable[[Any], Quantity]) -> Series:
        newest = next((value for value in reversed(values) if value is not None), None)
        return Series(key, label, write(None if self.old_since else newest), _texts(values, write))

    def _plot(
        self, key: str, title: str, axis: Scale, layers: Sequence[tuple[str, str]], series: tuple[Series, ...],
        note: str = "", highest: Quantity | None = None,
    ) -> Plot:  # fmt: skip
        drawn = tuple((name, path) for name, path in layers if path)
        box = _box(self.window, self.window.lines, shapes.HEIGHT)
        height = max(72, 16 * (len(series) + (highest is not None)) + 8)
        return Plot(key, title, axis if drawn else None, box, drawn, series, note, height, highest)


def job_timeline(page: JobPage, query: Mapping[str, str], now: datetime, *, has_load: bool = True) -> Timeline | None:
    """The plots of a job's page, over the time that `query` asks for; None for a job without numbers.

    The present ends with the latest run. A run in BATCH has no history. `has_load`: with the load of the operators,
    which has most of the numbers to read.
    """
    run = page.run
    if run is None or run.version.is_batch:
        return None
    latest = min(run.ended_at, now) if run.is_terminal and run.ended_at else now
    return Timeline(page, window(query, latest), chosen(query), now, has_load=has_load)


def checkpoint_phases(numbers: Columns) -> dict[str, list[float | None]]:
    """Milliseconds of each phase in each interval; together at most the duration of the longest checkpoint.

    The phases are those of its slowest subtask, as in its Gantt chart. The commit is the manifest, its record, and the
    commit of the whole output. Clocks of hosts differ: if the phases add up to more than the time before the commit,
    their shares are drawn.
    """
    phases: dict[str, list[float | None]] = {phase: [] for phase in PHASES}
    for at, lasted in enumerate(numbers["checkpoint_ms"]):
        times = {phase: numbers[f"{phase}_ms"][at] or 0.0 for phase in PHASES[:-1]}
        total = sum(times.values())
        commit = min(numbers["commit_ms"][at] or 0.0, lasted or 0.0)
        share = min(1.0, ((lasted or 0.0) - commit) / total) if total else 0.0
        for phase, ms in times.items():
            phases[phase].append(None if lasted is None else ms * share)
        phases["commit"].append(None if lasted is None else commit)
    return phases


def _box(window: Window, grid: Grid, height: int) -> str:
    """The viewBox that shows the window of a grid, which may begin earlier and end later."""
    left = (window.begin - grid.begin).total_seconds() / grid.step_s
    return f"{left:g} 0 {window.span.length.total_seconds() / grid.step_s:g} {height}"


def _texts(values: Sequence[Any], write: Callable[[Any], Quantity]) -> str:
    return "|".join("" if value is None else str(write(value)) for value in values)


def _number(value: int | None) -> Quantity:
    return Quantity(formats.count(value))


def _largest(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


_TABLE: Final[tuple[tuple[str, Callable[[Any], Quantity], Callable[[Sequence[Any]], Any]], ...]] = (
    ("records_in_per_s", formats.rate, mean),
    ("records_out_per_s", formats.rate, mean),
    ("event_lag_ms", formats.duration, highest),
    ("processing_lag_ms", formats.duration, highest),
    ("checkpoint_ms", formats.duration, highest),
    ("state_bytes", formats.size, highest),
)


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)
