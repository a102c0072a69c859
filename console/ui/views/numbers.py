"""The numbers behind the plots of a job, as CSV."""

import csv
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.operations import selectors
from console.ui.plots.timeline import Timeline, job_timeline
from console.ui.views.page import require_login

#: Numbers of the run as a whole.
_COLUMNS: Final = (
    "records_in_per_s", "records_out_per_s", "bytes_in_per_s", "bytes_out_per_s", "event_lag_ms", "processing_lag_ms",
    "checkpoints", "checkpoints_failed", "checkpoint_ms", "start_delay_ms", "pre_barrier_ms", "alignment_ms", "sync_ms",
    "async_ms", "state_bytes", "in_flight_bytes", "cpu_cores", "memory_bytes",
)  # fmt: skip


@require_safe
@require_login
def numbers_csv(request: HttpRequest, pk: int) -> HttpResponse:
    """The numbers of the window in the address, a row per interval of the plots. Empty: no number is known."""
    timeline = job_timeline(selectors.job_page(pk, request.user), request.GET, timezone.now())
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="job-{pk}-history.csv"'
    writer = csv.writer(response)
    writer.writerow(["begin", *_COLUMNS])
    if timeline is not None:
        writer.writerows(_rows(timeline))
    return response


def _rows(timeline: Timeline) -> Iterator[list[Any]]:
    grid, numbers = timeline.window.lines, timeline.numbers
    begin: datetime = grid.begin
    for at in range(grid.size):
        yield [(begin + timedelta(seconds=at * grid.step_s)).isoformat(), *(numbers[name][at] for name in _COLUMNS)]
