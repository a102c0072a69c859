"""The page with the schedule of a job's savepoints."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.refusals import Refused
from console.accounts.rights import operate_refusal
from console.jobs.models import Job
from console.operations.models import OperationKind, SavepointSchedule
from console.ui.paging import whole_number
from console.ui.views.actions import request_operation
from console.ui.views.page import page, require_login


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """GET shows the schedule and its form; POST saves or removes it."""
    job = get_object_or_404(Job, pk=pk)
    if request.method == "POST":
        removes = request.POST.get("act") == OperationKind.UNSCHEDULE
        try:
            kind = OperationKind.UNSCHEDULE if removes else OperationKind.SCHEDULE
            request_operation(request, job, kind, {} if removes else _params(request))
        except Refused as refused:
            messages.error(request, refused.detail)
        return redirect("ui:schedule", job.pk)
    found = SavepointSchedule.objects.select_related("owner", "last_operation").filter(job=job).first()
    context = {"job": job, "schedule": found, "refusal": operate_refusal(request.user)}
    return page(request, "checkpoints/schedule.html", context)


def _params(request: HttpRequest) -> dict[str, Any]:
    """The parameters of the operation, which checks them. Of the two rules, only the chosen one is sent."""
    given = request.POST
    daily = given.get("rule") == "daily"
    rule = (
        {"daily_at": given.get("daily_at", "")[:5]}
        if daily
        else {"every_hours": whole_number(given.get("every_hours")) or 0}
    )
    return {**rule, "keep": whole_number(given.get("keep")) or 0, "name": given.get("name", "").strip() or "scheduled"}
