"""The evidence pack of a checkpoint, as a page for print and as a JSON file."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from console.checkpoints.models import Checkpoint
from console.operations.evidence import evidence_pack
from console.ui.views.page import page, require_login, user_of


@require_safe
@require_login
def evidence(request: HttpRequest, pk: int) -> HttpResponse:
    """The page; with `?format=json` the file."""
    rows = Checkpoint.objects.select_related("job", "run__version", "reviewer", "assignee", "pinned_by")
    found = get_object_or_404(rows, pk=pk)
    pack = evidence_pack(found, user_of(request))
    if request.GET.get("format") == "json":
        response = JsonResponse(pack, json_dumps_params={"indent": 2})
        response["Content-Disposition"] = f'attachment; filename="evidence-{found.job_id}-{found.number}.json"'
        return response
    return page(request, "checkpoints/evidence.html", {"checkpoint": found, "job": found.job, "pack": pack})
