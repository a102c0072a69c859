"""Tables as CSV: jobs, runs of a job, and checkpoints of a job, with the filters of their pages. Times are in UTC."""

from collections.abc import Iterator
from datetime import datetime
from itertools import chain

from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.checkpoints.filters import CheckpointFilter
from console.checkpoints.selectors import checkpoint_table
from console.csv_files import csv_file
from console.jobs.models import Job
from console.pages.selectors import job_rows, runs_of
from console.runs.selectors import FoundJobs
from console.ui.lists.job_filters import JobFilters
from console.ui.lists.job_list import JobLine, job_lines
from console.ui.live.page import require_login
from console.ui.paging import all_pages, text
from console.ui.tables.checkpoints import CHECKPOINTS
from console.ui.tables.jobs import JOBS
from console.ui.tables.runs import RUNS


@require_safe
@require_login
def jobs_csv(request: HttpRequest) -> HttpResponseBase:
    filters, now = JobFilters.of(request.GET), timezone.now()
    lines = _job_lines(filters.chosen(filters.found(now)).select_related("health"), now)
    return csv_file("jobs", JOBS.fields, JOBS.csv_rows(lines))


@require_safe
@require_login
def runs_csv(request: HttpRequest, pk: int) -> HttpResponseBase:
    job = get_object_or_404(Job, pk=pk)
    rows = runs_of(job).values_list(*RUNS.field_paths, named=True)
    pages = all_pages(rows, lambda rows, last: rows.filter(pk__lt=last.pk))
    return csv_file(f"job-{pk}-runs", RUNS.fields, chain.from_iterable(pages))


@require_safe
@require_login
def checkpoints_csv(request: HttpRequest, pk: int) -> HttpResponseBase:
    job = get_object_or_404(Job, pk=pk)
    values = {name: text(request.GET.get(name)) for name in CheckpointFilter.base_filters}
    filters = CheckpointFilter(values, queryset=checkpoint_table(job), job=job)
    if not filters.is_valid():
        raise Http404("The filter is invalid.")
    rows = filters.qs.order_by("-number").values_list(*CHECKPOINTS.field_paths, named=True)
    pages = all_pages(rows, lambda rows, last: rows.filter(number__lt=last.number))
    return csv_file(f"job-{pk}-checkpoints", CHECKPOINTS.fields, chain.from_iterable(pages))


def _job_lines(queryset: FoundJobs, now: datetime) -> Iterator[JobLine]:
    for jobs in all_pages(queryset, lambda rows, last: rows.filter(name__gt=last.name)):
        yield from job_lines(job_rows(jobs, now), {}, now)
