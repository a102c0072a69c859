"""The evidence pack of a checkpoint, as a page for print and as a JSON file."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.operations.evidence import evidence_pack
from console.operations.legality import allowed_verify
from console.operations.models import OperationKind
from console.ui.views.actions import request_operation
from console.ui.views.page import page, require_login, user_of


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def evidence(request: HttpRequest, pk: int) -> HttpResponse:
    """GET shows the pack, or with `?format=json` returns it as a file. POST requests a check of the files."""
    rows = Checkpoint.objects.select_related("job", "run__version", "reviewer", "assignee", "pinned_by")
    found = get_object_or_404(rows, pk=pk)
    if request.method == "POST":
        try:
            request_operation(request, found.job, OperationKind.VERIFY, {"checkpoint": found.pk})
        except Refused as refused:
            messages.error(request, refused.detail)
        return redirect("ui:evidence", found.pk)
    pack = evidence_pack(found, user_of(request))
    if request.GET.get("format") == "json":
        response = JsonResponse(pack, json_dumps_params={"indent": 2})
        response["Content-Disposition"] = f'attachment; filename="evidence-{found.job_id}-{found.number}.json"'
        return response
    context = {"checkpoint": found, "job": found.job, "pack": pack, "act": allowed_verify(found, request.user)}
    return page(request, "checkpoints/evidence.html", context)
