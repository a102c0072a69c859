"""The page with the schedules of a job's savepoints and restore drills."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.rights import operate_refusal
from console.jobs.models import Job
from console.operations.models import Operation, OperationKind, Schedule, ScheduledOperation
from console.operations.schedules import SHOWN_TIMES, next_times
from console.ui.paging import whole_number
from console.ui.revision import revision
from console.ui.views.actions import request_or_explain
from console.ui.views.page import PageContent, page_or_blocks, require_login


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def schedule(request: HttpRequest, pk: int) -> HttpResponse:
    """GET shows the schedules and their forms; POST saves or removes one of them."""
    job = get_object_or_404(Job, pk=pk)
    if request.method == "POST":
        removes = request.POST.get("act") == OperationKind.UNSCHEDULE
        kind = OperationKind.UNSCHEDULE if removes else OperationKind.SCHEDULE
        operation = {"operation": request.POST.get("operation") or ScheduledOperation.SAVEPOINT.value}
        request_or_explain(request, job, kind, operation if removes else operation | _params(request))
        return redirect("ui:schedule", job.pk)
    rows = Schedule.objects.filter(job=job)

    def load_content() -> PageContent:
        found = {row.operation: row for row in rows.select_related("owner", "last_operation")}
        schedules = [
            (kind.value, row or _default_schedule(kind), next_times(row, SHOWN_TIMES) if row else ())
            for kind in ScheduledOperation
            for row in (found.get(kind),)
        ]
        return PageContent(
            {"job": job, "schedules": schedules, "refusal": operate_refusal(request.user)}, settled=False
        )

    def load_revision() -> str:
        last = Operation.objects.filter(pk__in=rows.values("last_operation")).order_by("pk")
        return revision(request, [(rows.order_by("pk"), len(ScheduledOperation)), (last, len(ScheduledOperation))])

    return page_or_blocks(
        request, "checkpoints/schedule.html", "checkpoints/_schedules.html", load_content, load_revision
    )


def _default_schedule(kind: ScheduledOperation) -> Schedule:
    """The values of the form and of its commands while there is no schedule."""
    keep, name = (7, "scheduled") if kind is ScheduledOperation.SAVEPOINT else (None, "")
    return Schedule(operation=kind.value, every_hours=6, keep=keep, name=name)


def _params(request: HttpRequest) -> dict[str, Any]:
    """The parameters of the operation, which checks them. Of the two rules, only the chosen one is sent."""
    given = request.POST
    daily = given.get("rule") == "daily"
    params: dict[str, Any] = (
        {"daily_at": given.get("daily_at", "")[:5]}
        if daily
        else {"every_hours": whole_number(given.get("every_hours")) or 0}
    )
    if "keep" in given:
        params["keep"] = whole_number(given["keep"]) or 0
    if name := given.get("name", "").strip():
        params["name"] = name
    params["blackouts"] = [line.strip().lower() for line in given.get("blackouts", "").splitlines() if line.strip()]
    return params
