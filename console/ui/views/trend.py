"""The page with the duration and the size of a job's checkpoints over days."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.checkpoints.trend import SPANS_DAYS, daily_trend
from console.jobs.models import Job
from console.ui.paging import whole_number
from console.ui.plots import trend as plots
from console.ui.views.page import page, require_login

_DEFAULT_DAYS = 30


@require_safe
@require_login
def trend(request: HttpRequest, pk: int) -> HttpResponse:
    """`days` in the address is one of `SPANS_DAYS`."""
    job = get_object_or_404(Job, pk=pk)
    wanted = whole_number(request.GET.get("days"))
    days = wanted if wanted in SPANS_DAYS else _DEFAULT_DAYS
    found = daily_trend(job, days, timezone.now())
    context = {
        "job": job,
        "spans": SPANS_DAYS,
        "days": days,
        "trend": plots.trend(found),
        "rows": [(day, day.day + timedelta(days=1)) for day in reversed(found) if day.checkpoints],
    }
    return page(request, "checkpoints/trend.html", context)
