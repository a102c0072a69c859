"""The page with the schedules of a job's savepoints and restore drills."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect

from console.accounts.rights import operate_refusal
from console.jobs.models import Job
from console.operations.models import Operation, OperationKind, Schedule, ScheduledOperation
from console.operations.schedules import SHOWN_TIMES, next_times
from console.ui.live.page import LivePage, PageContent
from console.ui.live.revision import revision
from console.ui.paging import whole_number
from console.ui.views.actions import request_or_explain


class SchedulePage(LivePage):
    """GET shows the schedules and their forms; POST saves or removes one of them."""

    template, blocks = "checkpoints/schedule.html", "checkpoints/_schedules.html"

    def open(self, pk: int) -> HttpResponse | None:
        self.job = get_object_or_404(Job, pk=pk)
        if self.request.method == "POST":
            removes = self.request.POST.get("act") == OperationKind.UNSCHEDULE
            kind = OperationKind.UNSCHEDULE if removes else OperationKind.SCHEDULE
            params = {"operation": self.request.POST.get("operation") or ScheduledOperation.SAVEPOINT.value}
            request_or_explain(self.request, self.job, kind, params if removes else params | _params(self.request))
            return redirect("ui:schedule", self.job.pk)
        self.schedules = Schedule.objects.filter(job=self.job)
        return None

    def content(self) -> PageContent:
        rows = {row.operation: row for row in self.schedules.select_related("owner", "last_operation")}
        schedules = [
            (kind.value, row or _default_schedule(kind), next_times(row, SHOWN_TIMES) if row else ())
            for kind in ScheduledOperation
            for row in (rows.get(kind),)
        ]
        return {"job": self.job, "schedules": schedules, "refusal": operate_refusal(self.request.user)}

    def rows(self) -> str:
        last = Operation.objects.filter(pk__in=self.schedules.values("last_operation")).order_by("pk")
        return revision(
            self.request, [(self.schedules.order_by("pk"), len(ScheduledOperation)), (last, len(ScheduledOperation))]
        )


schedule = SchedulePage.view(posts=True)


def _default_schedule(kind: ScheduledOperation) -> Schedule:
    """The values of the form and of its commands while there is no schedule."""
    keep, name = (7, "scheduled") if kind is ScheduledOperation.SAVEPOINT else (None, "")
    return Schedule(operation=kind.value, every_hours=6, keep=keep, name=name)


def _params(request: HttpRequest) -> dict[str, Any]:
    """The parameters of the operation, which checks them. Of the two rules, only the chosen one is sent."""
    data = request.POST
    daily = data.get("rule") == "daily"
    params: dict[str, Any] = (
        {"daily_at": data.get("daily_at", "")[:5]}
        if daily
        else {"every_hours": whole_number(data.get("every_hours")) or 0}
    )
    if "keep" in data:
        params["keep"] = whole_number(data["keep"]) or 0
    if name := data.get("name", "").strip():
        params["name"] = name
    params["blackouts"] = [line.strip().lower() for line in data.get("blackouts", "").splitlines() if line.strip()]
    return params
