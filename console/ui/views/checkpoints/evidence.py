"""The evidence pack of a checkpoint, as a page for print and as a JSON file."""

from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect

from console.checkpoints.models import Checkpoint
from console.operations.legality import allowed_on
from console.operations.models import Operation, OperationKind
from console.pages.evidence import evidence_pack
from console.ui.live.page import LivePage, PageContent, user_of
from console.ui.live.revision import revision
from console.ui.views.actions import request_or_explain


class EvidencePage(LivePage):
    """GET shows the pack, or with `?format=json` returns it as a file. POST requests a check of the files.

    The page is live while a check is under way.
    """

    template, blocks = "checkpoints/evidence.html", "checkpoints/_evidence_live.html"

    def open(self, pk: int) -> HttpResponse | None:
        rows = Checkpoint.objects.select_related("job", "run__version", "reviewer", "assignee", "pinned_by")
        self.checkpoint = get_object_or_404(rows, pk=pk)
        if self.request.method == "POST":
            request_or_explain(
                self.request, self.checkpoint.job, OperationKind.VERIFY, {"checkpoint": self.checkpoint.pk}
            )
            return redirect("ui:evidence", self.checkpoint.pk)
        if self.request.GET.get("format") == "json":
            response = JsonResponse(
                evidence_pack(self.checkpoint, user_of(self.request)), json_dumps_params={"indent": 2}
            )
            response["Content-Disposition"] = (
                f'attachment; filename="evidence-{self.checkpoint.job_id}-{self.checkpoint.number}.json"'
            )
            return response
        return None

    def content(self) -> PageContent:
        pack, act = (
            evidence_pack(self.checkpoint, user_of(self.request)),
            allowed_on(self.checkpoint, OperationKind.VERIFY, self.request.user),
        )
        return {"checkpoint": self.checkpoint, "job": self.checkpoint.job, "pack": pack, "act": act}

    def rows(self) -> str:
        checks = Operation.objects.filter(job=self.checkpoint.job_id, kind=OperationKind.VERIFY.value).order_by(
            "-created_at"
        )
        row = Checkpoint.objects.filter(pk=self.checkpoint.pk)
        return revision(self.request, [(row, 1), (checks.filter(params__checkpoint=self.checkpoint.pk), 1)])


evidence = EvidencePage.view(posts=True)
