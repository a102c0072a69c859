"""The page with the duration, the size and the failures of a job's checkpoints over days, and the same as CSV."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.checkpoints.trend import SPANS_DAYS, DayTrend, daily_trend
from console.csv_files import csv_file
from console.jobs.models import Job
from console.ui.live.page import page, require_login
from console.ui.paging import whole_number
from console.ui.plots import trend as plots
from console.ui.tables.storage import DAYS

_DEFAULT_DAYS = 30


@require_safe
@require_login
def trend(request: HttpRequest, pk: int) -> HttpResponse:
    """`days` in the address is one of `SPANS_DAYS`."""
    job, days = get_object_or_404(Job, pk=pk), _chosen_days(request)
    history = daily_trend(job, days, timezone.now())
    context = {
        "job": job,
        "spans": SPANS_DAYS,
        "days": days,
        "trend": plots.trend(history),
        "rows": [(day, day.day + timedelta(days=1)) for day in reversed(history) if _has_ended(day)],
    }
    return page(request, "checkpoints/trend.html", context)


@require_safe
@require_login
def trend_csv(request: HttpRequest, pk: int) -> HttpResponseBase:
    """A row per day with a checkpoint that has ended, newest first, and a column per reason of failures."""
    job, days = get_object_or_404(Job, pk=pk), _chosen_days(request)
    history = [day for day in reversed(daily_trend(job, days, timezone.now())) if _has_ended(day)]
    reasons = sorted({reason for day in history for reason in day.failures})
    columns = [*DAYS.fields, *(f"failed_{reason}" for reason in reasons)]
    rows = (
        [*fields, *(day.failures.get(reason, 0) for reason in reasons)]
        for day, fields in zip(history, DAYS.csv_rows(history), strict=True)
    )
    return csv_file(f"job-{pk}-trend", columns, rows)


def _chosen_days(request: HttpRequest) -> int:
    days = whole_number(request.GET.get("days"))
    return days if days in SPANS_DAYS else _DEFAULT_DAYS


def _has_ended(day: DayTrend) -> bool:
    return bool(day.checkpoints or day.failures)
