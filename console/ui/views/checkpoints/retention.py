"""The pages of the storage of a job: the effects of a retention policy, and orphans."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from console.housekeeping.orphans import find_orphans
from console.jobs.models import Job
from console.pages.retention import MAX_HOURS, MAX_KEEP, describe_policy, preview_retention
from console.ui.live.page import page, require_login
from console.ui.paging import text, whole_number
from runtime.core.job.settings import RetentionPolicy


@require_safe
@require_login
def retention(request: HttpRequest, pk: int) -> HttpResponse:
    """The preview for `keep` and `hours` in the address; without them, for the policy of the job."""
    job = get_object_or_404(Job, pk=pk)
    keep, hours = text(request.GET.get("keep")), text(request.GET.get("hours"))
    wrong = [
        f"{entry} is not a number from 1 to {most}."
        for entry, most in ((keep, MAX_KEEP), (hours, MAX_HOURS))
        if entry and not 1 <= (whole_number(entry) or 0) <= most
    ]
    policy = RetentionPolicy(whole_number(keep) or 0, whole_number(hours)) if keep and not wrong else None
    preview = preview_retention(job, policy)
    context = {
        "job": job,
        "most": MAX_KEEP,
        "most_hours": MAX_HOURS,
        "wrong": wrong,
        "preview": preview,
        "present": describe_policy(preview.present),
    }
    return page(request, "checkpoints/retention.html", context)


@require_safe
@require_login
def orphans(request: HttpRequest, pk: int) -> HttpResponse:
    job = get_object_or_404(Job, pk=pk)
    return page(request, "checkpoints/orphans.html", {"job": job, "found": find_orphans(job)})
