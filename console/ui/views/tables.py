"""Tables as CSV: jobs, runs of a job, and checkpoints of a job, with the filters of their pages. Times are in UTC."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.checkpoints.filters import CheckpointFilter
from console.checkpoints.selectors import checkpoint_table
from console.csv_files import csv_file
from console.jobs.models import Job
from console.operations.selectors import runs_of
from console.ui.jobfilters import JobFilters
from console.ui.operationlist import MAX_CSV_ROWS
from console.ui.paging import text
from console.ui.views.page import require_login

_JOBS = ("id", "name", "pipeline", "owner", "tags", "state", "run")
_RUNS = ("id", "state", "version", "parallelism", "created_at", "started_at", "ended_at")
_CHECKPOINTS = ("id", "number", "kind", "status", "reason", "run", "triggered_at", "completed_at", "duration_ms",
                "size_bytes", "written_bytes", "name", "path")  # fmt: skip


@require_safe
@require_login
def jobs_csv(request: HttpRequest) -> HttpResponse:
    filters = JobFilters.of(request.GET)
    rows = filters.chosen(filters.found(timezone.now())).values_list(
        "pk", "name", "pipeline", "owner", "tags", "run_state", "run_pk"
    )[:MAX_CSV_ROWS]
    return csv_file("jobs", _JOBS, ((*row[:4], " ".join(row[4]), *row[5:]) for row in rows))


@require_safe
@require_login
def runs_csv(request: HttpRequest, pk: int) -> HttpResponse:
    job = get_object_or_404(Job, pk=pk)
    rows = runs_of(job).values_list("pk", "state", "version__number", *_RUNS[3:])[:MAX_CSV_ROWS]
    return csv_file(f"job-{pk}-runs", _RUNS, rows)


@require_safe
@require_login
def checkpoints_csv(request: HttpRequest, pk: int) -> HttpResponse:
    job = get_object_or_404(Job, pk=pk)
    given = {name: text(request.GET.get(name)) for name in CheckpointFilter.base_filters}
    found = CheckpointFilter(given, queryset=checkpoint_table(job), job=job)
    if not found.is_valid():
        raise Http404("The filter is invalid.")
    rows = found.qs.order_by("-number")[:MAX_CSV_ROWS]
    return csv_file(f"job-{pk}-checkpoints", _CHECKPOINTS, (_checkpoint(row) for row in rows))


def _checkpoint(row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, "pk" if name == "id" else "run_id" if name == "run" else name) for name in _CHECKPOINTS)
