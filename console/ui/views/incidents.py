"""The first page with the jobs that are not well now, the list of incidents, and the page of an incident."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse

from console.accounts.refusals import Refused
from console.accounts.rights import operate_refusal
from console.alerts.services import silence
from console.incidents import services
from console.incidents.models import Incident
from console.jobs.models import Job
from console.pages.incidents import (
    MAX_NOW,
    find_incident,
    incident_page,
    listed_incidents,
    open_incidents,
    rows_of_incident,
)
from console.ui.incident_acts import incident_acts
from console.ui.live.page import LivePage, PageContent, require_login, user_of
from console.ui.live.revision import revision
from console.ui.paging import ROWS_PER_PAGE, by_id, whole_number


class NowPage(LivePage):
    template, blocks = "incidents/now.html", "incidents/_now_live.html"

    def content(self) -> PageContent:
        return {"section": "now", "incidents": list(open_incidents()[:MAX_NOW])}

    def rows(self) -> str:
        return revision(self.request, [(open_incidents(), MAX_NOW)])


now = NowPage.view()


class IncidentList(LivePage):
    template, blocks = "incidents/list.html", "incidents/_list_live.html"

    def open(self) -> None:
        number = whole_number(self.request.GET.get("job"))
        self.job = get_object_or_404(Job, pk=number) if number is not None else None
        incidents = listed_incidents()
        self.incidents = by_id(
            incidents.filter(job=self.job) if self.job else incidents,
            whole_number(self.request.GET.get("before")),
            ROWS_PER_PAGE,
        )

    def content(self) -> PageContent:
        return {"section": "now", "incidents": self.incidents, "filters": {"job": self.job}}

    def rows(self) -> str:
        keys = [incident.pk for incident in self.incidents.rows]
        return revision(self.request, [(Incident.objects.filter(pk__in=keys).order_by("-pk"), ROWS_PER_PAGE)])


incident_list = IncidentList.view()


class IncidentDetail(LivePage):
    """GET shows the incident; POST takes or releases it, adds a note, or silences the alerts of its job."""

    template, blocks = "incidents/detail.html", "incidents/_live.html"

    def open(self, pk: int) -> HttpResponse | None:
        self.incident = find_incident(pk)
        if self.request.method != "POST":
            return None
        try:
            _act(self.request, self.incident)
        except Refused as refused:
            messages.error(self.request, refused.detail)
        return redirect("ui:incident", pk)

    def content(self) -> PageContent:
        view = incident_page(self.incident)
        suggestion, acts = incident_acts(self.incident, view.latest_run, self.request.user)
        return {
            "section": "now",
            "incident": self.incident,
            "job": self.incident.job,
            "page": view,
            "acts": acts,
            "suggestion": suggestion,
            "refusal": operate_refusal(self.request.user),
            "max_note": services.MAX_NOTE_LENGTH,
        }

    def rows(self) -> str:
        return revision(self.request, rows_of_incident(self.incident))


incident = IncidentDetail.view(posts=True)


@require_login
def job_incident(request: HttpRequest, pk: int) -> HttpResponse:
    """Leads to the open incident of a job; to the list of its incidents if none is open."""
    incident = Incident.objects.filter(job=get_object_or_404(Job, pk=pk), closed_at=None).first()
    if incident is not None:
        return redirect("ui:incident", incident.pk)
    return redirect(f"{reverse('ui:incidents')}?job={pk}")


def _act(request: HttpRequest, incident: Incident) -> None:
    """Carries out the act of a form. Raises Refused."""
    user, act = user_of(request), request.POST.get("act")
    acts: dict[str, Any] = {
        "take": lambda: services.take(user, incident),
        "release": lambda: services.release(user, incident),
        "silence": lambda: silence(user, incident, whole_number(request.POST.get("hours")) or 0),
        "note": lambda: services.add_note(user, incident, request.POST.get("text", "")),
    }
    if act in acts:
        acts[act]()
