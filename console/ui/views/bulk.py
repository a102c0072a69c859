"""Acts on several jobs: a confirmation with the effect on each job, then the result for each."""

import shlex
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone

from console.accounts.refusals import Refused
from console.operations.bulk import BulkAct, BulkLine, bulk_lines, carry_out, result_lines
from console.operations.kinds.job.delegated import DelegatedOperation
from console.operations.models import BulkOperation, Operation
from console.operations.registry import operation_of
from console.pages.selectors import rows_of_selection
from console.ui.live.page import LivePage, PageContent, page
from console.ui.live.revision import revision
from console.ui.paging import whole_number
from console.ui.views.actions import request_context


class BulkPage(LivePage):
    """GET asks for confirmation, and stays live; POST sends a request per job and leads to the page of the results.

    A refusal stops no other job. A poll names the runs that the page was opened for, as on the page of a single job.
    """

    template, blocks = "jobs/bulk.html", "jobs/_bulk_live.html"

    def open(self) -> HttpResponse | None:
        values = self.request.POST if self.request.method == "POST" else self.request.GET
        act = next((act for act in BulkAct if act == values.get("kind")), None)
        self.numbers = sorted({number for text in values.getlist("job") if (number := whole_number(text)) is not None})
        self.runs = {number for text in values.getlist("run") if (number := whole_number(text)) is not None}
        self.tags = [tag for tag in values.get("tags", "").split(",") if tag.strip()]
        if act is None:
            return HttpResponseBadRequest(f"kind: one of {', '.join(BulkAct)}.", "text/plain")
        self.act = act
        if self.request.method != "POST" or not self.numbers:
            return None
        context = request_context(self.request)
        try:
            return redirect("ui:bulk_result", carry_out(act, self._lines(), self.tags, context, self.runs).pk)
        except Refused as refused:
            return self._refusal(refused)

    def content(self) -> PageContent:
        lines = self._lines()
        compares_runs = "HX-Request" in self.request.headers and not self.act.is_of_tags
        outdated = [line.job.name for line in lines if compares_runs and line.run and line.run.pk not in self.runs]
        return {**_context(self.act, self.tags, lines), "outdated": outdated}

    def rows(self) -> str:
        return revision(self.request, rows_of_selection(self.numbers))

    def response(self) -> HttpResponse:
        try:
            return super().response()
        except Refused as refused:
            return self._refusal(refused)

    def _lines(self) -> Sequence[BulkLine]:
        return bulk_lines(self.act, self.numbers, self.tags, self.request.user, timezone.now())

    def _refusal(self, refused: Refused) -> HttpResponse:
        problem = {"title": _texts(self.act)[0], "problem": refused.detail}
        return page(self.request, self.template, problem, status=refused.status)


bulk = BulkPage.view(posts=True)


class BulkResult(LivePage):
    """The result of an act for each of its jobs, with the present state of its operation."""

    template, blocks = "jobs/bulk_result.html", "jobs/_bulk_result.html"

    def open(self, pk: UUID) -> None:
        self.row = get_object_or_404(BulkOperation.objects.select_related("requested_by"), pk=pk)
        self.act = BulkAct(self.row.kind)

    def content(self) -> PageContent:
        lines = result_lines(self.row)
        return {**_context(self.act, self.row.tags, lines), "row": self.row}

    def rows(self) -> str:
        requested = [result["operation"] for result in self.row.results if result["operation"]]
        operations = Operation.objects.filter(pk__in=requested).order_by("pk")
        selected = rows_of_selection([result["job"] for result in self.row.results])
        return revision(self.request, [(operations, len(requested)), *selected])


bulk_result = BulkResult.view()


def _texts(act: BulkAct) -> tuple[str, str]:
    """The title and the effect of an act."""
    if act is BulkAct.TAG:
        return "Add tags", "Each of these jobs gets the tags and keeps its own."
    if act is BulkAct.UNTAG:
        return "Remove tags", "Each of these jobs loses the tags and keeps its others."
    operation = operation_of(DelegatedOperation, act)
    return operation.bulk_title, operation.bulk_effect


def _context(act: BulkAct, tags: Sequence[str], lines: Sequence[BulkLine]) -> dict[str, Any]:
    title, effect = _texts(act)
    return {
        "kind": act.value,
        "tags": ", ".join(tag.strip() for tag in tags),
        "title": title,
        "effect": effect,
        "lines": lines,
        "possible": sum(not line.refusal and (line.changes or not act.is_of_tags) for line in lines),
        "command": _command(act, tags, [line.job.name for line in lines]),
        "is_dangerous": not act.is_of_tags and operation_of(DelegatedOperation, act).button.is_dangerous,
        "is_of_tags": act.is_of_tags,
    }


def _command(act: BulkAct, tags: Sequence[str], names: Sequence[str]) -> str:
    if act.is_of_tags:
        return shlex.join(["weir", act.value, ",".join(tag.strip() for tag in tags), *names])
    return shlex.join(["weir", "bulk", act.value, *names])
