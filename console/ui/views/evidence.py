"""The evidence pack of a checkpoint, as a page for print and as a JSON file."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.checkpoints.models import Checkpoint
from console.operations.legality import allowed_on
from console.operations.models import Operation, OperationKind
from console.pages.evidence import evidence_pack
from console.ui.revision import revision
from console.ui.views.actions import request_or_explain
from console.ui.views.page import PageContent, page_or_blocks, require_login, user_of


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def evidence(request: HttpRequest, pk: int) -> HttpResponse:
    """GET shows the pack, or with `?format=json` returns it as a file. POST requests a check of the files.

    The page is live while a check is under way.
    """
    rows = Checkpoint.objects.select_related("job", "run__version", "reviewer", "assignee", "pinned_by")
    found = get_object_or_404(rows, pk=pk)
    if request.method == "POST":
        request_or_explain(request, found.job, OperationKind.VERIFY, {"checkpoint": found.pk})
        return redirect("ui:evidence", found.pk)
    if request.GET.get("format") == "json":
        response = JsonResponse(evidence_pack(found, user_of(request)), json_dumps_params={"indent": 2})
        response["Content-Disposition"] = f'attachment; filename="evidence-{found.job_id}-{found.number}.json"'
        return response

    def load_content() -> PageContent:
        pack, act = evidence_pack(found, user_of(request)), allowed_on(found, OperationKind.VERIFY, request.user)
        context = {"checkpoint": found, "job": found.job, "pack": pack, "act": act}
        return PageContent(context, settled=not pack["verification"]["is_under_way"])

    def load_revision() -> str:
        checks = Operation.objects.filter(job=found.job_id, kind=OperationKind.VERIFY.value).order_by("-created_at")
        return revision(request, [(checks.filter(params__checkpoint=found.pk), 1)])

    return page_or_blocks(
        request, "checkpoints/evidence.html", "checkpoints/_evidence_live.html", load_content, load_revision
    )
