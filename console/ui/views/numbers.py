"""The numbers behind the plots of a job, as CSV, and the plots as SVG files."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.csv_files import csv_file
from console.pages import selectors
from console.ui.live.page import require_login
from console.ui.plots.gaps import NO_NUMBERS
from console.ui.plots.svg_file import svg_file
from console.ui.plots.timeline import Timeline, job_timeline

#: Numbers of the run as a whole.
_COLUMNS: Final = (
    "records_in_per_s", "records_out_per_s", "bytes_in_per_s", "bytes_out_per_s", "event_lag_ms", "processing_lag_ms",
    "checkpoints", "checkpoints_failed", "checkpoint_ms", "start_delay_ms", "pre_barrier_ms", "alignment_ms", "sync_ms",
    "async_ms", "commit_ms", "state_bytes", "in_flight_bytes", "cpu_cores", "memory_bytes",
)  # fmt: skip


@require_safe
@require_login
def numbers_csv(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The numbers of the window in the address, a row per interval of the plots. Empty: no number is known.

    The last column marks intervals of a run that was up while no numbers arrived.
    """
    timeline = job_timeline(selectors.job_page(pk), request.GET, timezone.now(), has_load=False)
    return csv_file(f"job-{pk}-history", ["begin", *_COLUMNS, "gap"], _rows(timeline) if timeline else ())


@require_safe
@require_login
def plot_svg(request: HttpRequest, pk: int, key: str) -> HttpResponse:
    """A plot of the window in the address."""
    timeline = job_timeline(selectors.job_page(pk), request.GET, timezone.now(), has_load=False)
    drawn = svg_file(timeline, key) if timeline else None
    if drawn is None:
        raise Http404(f"the job has no plot {key!r}")
    headers = {"Content-Disposition": f'attachment; filename="job-{pk}-{key}.svg"'}
    return HttpResponse(drawn, content_type="image/svg+xml", headers=headers)


def _rows(timeline: Timeline) -> Iterator[list[Any]]:
    grid, numbers = timeline.window.lines, timeline.numbers
    begin: datetime = grid.begin
    for at in range(grid.size):
        time = begin + timedelta(seconds=at * grid.step_s)
        gap = NO_NUMBERS if any(gap.begin <= time < gap.end for gap in timeline.gaps) else ""
        yield [time, *(numbers[name][at] for name in _COLUMNS), gap]
