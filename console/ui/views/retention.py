"""The page that shows what a retention policy would delete, and why the rest stays."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from console.jobs.models import Job
from console.operations.retention import MAX_KEEP, preview_retention
from console.ui.paging import text, whole_number
from console.ui.views.page import page, require_login


@require_safe
@require_login
def retention(request: HttpRequest, pk: int) -> HttpResponse:
    """The preview for `keep` in the address; without it, for the policy of the job."""
    job = get_object_or_404(Job, pk=pk)
    given = text(request.GET.get("keep"))
    keep = whole_number(given)
    is_valid = not given or (keep is not None and 1 <= keep <= MAX_KEEP)
    context = {
        "job": job,
        "given": given,
        "most": MAX_KEEP,
        "is_valid": is_valid,
        "preview": preview_retention(job, keep if is_valid else None),
    }
    return page(request, "checkpoints/retention.html", context)
