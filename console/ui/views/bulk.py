"""Acts on several jobs: a confirmation with the effect on each job, then the result for each."""

import shlex
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from console.accounts.middleware import request_id_of
from console.accounts.refusals import Refused
from console.operations.bulk import BulkAct, BulkLine, bulk_lines, carry_out, result_lines
from console.operations.kinds.job.delegated import delegated_operation
from console.operations.models import BulkOperation, Operation
from console.operations.services import OperationRequestContext
from console.pages.selectors import rows_of_selection
from console.ui.paging import whole_number
from console.ui.revision import revision
from console.ui.views.page import PageContent, page, page_or_blocks, require_login, user_of


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def bulk(request: HttpRequest) -> HttpResponse:
    """GET asks for confirmation, and stays live; POST sends a request per job and leads to the page of the results.

    A refusal stops no other job. A poll names the runs that the page was opened for, as on the page of a single job.
    """
    given = request.POST if request.method == "POST" else request.GET
    act = next((act for act in BulkAct if act == given.get("kind")), None)
    numbers = sorted({number for text in given.getlist("job") if (number := whole_number(text)) is not None})
    runs = {number for text in given.getlist("run") if (number := whole_number(text)) is not None}
    tags = [tag for tag in given.get("tags", "").split(",") if tag.strip()]
    if act is None:
        return HttpResponseBadRequest(f"kind: one of {', '.join(BulkAct)}.", "text/plain")

    def load_content() -> PageContent:
        lines = bulk_lines(act, numbers, tags, request.user, timezone.now())
        compares_runs = "HX-Request" in request.headers and not act.is_of_tags
        outdated = [line.job.name for line in lines if compares_runs and line.run and line.run.pk not in runs]
        return PageContent({**_context(act, tags, lines), "outdated": outdated}, settled=not lines)

    def load_revision() -> str:
        return revision(request, rows_of_selection(numbers))

    try:
        if request.method != "POST" or not numbers:
            return page_or_blocks(request, "jobs/bulk.html", "jobs/_bulk_live.html", load_content, load_revision)
        asked = OperationRequestContext(
            user=user_of(request),
            reason=request.POST.get("reason", "").strip(),
            request_id=request_id_of(request),
            idempotency_key=request.POST.get("key") or None,
        )
        lines = bulk_lines(act, numbers, tags, request.user, timezone.now())
        return redirect("ui:bulk_result", carry_out(act, lines, tags, asked, runs).pk)
    except Refused as refused:
        problem = {"title": _texts(act)[0], "problem": refused.detail}
        return page(request, "jobs/bulk.html", problem, status=refused.status)


@require_safe
@require_login
def bulk_result(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The result of an act for each of its jobs, with the present state of its operation."""
    row = get_object_or_404(BulkOperation.objects.select_related("requested_by"), pk=pk)
    act = BulkAct(row.kind)

    def load_content() -> PageContent:
        lines = result_lines(row)
        settled = not any(line.operation and line.operation.is_active for line in lines)
        return PageContent({**_context(act, row.tags, lines), "row": row}, settled)

    def load_revision() -> str:
        requested = [result["operation"] for result in row.results if result["operation"]]
        operations = Operation.objects.filter(pk__in=requested).order_by("pk")
        selected = rows_of_selection([result["job"] for result in row.results])
        return revision(request, [(operations, len(requested)), *selected])

    return page_or_blocks(request, "jobs/bulk_result.html", "jobs/_bulk_result.html", load_content, load_revision)


def _texts(act: BulkAct) -> tuple[str, str]:
    """The title and the effect of an act."""
    if act is BulkAct.TAG:
        return "Add tags", "Each of these jobs gets the tags and keeps its own."
    if act is BulkAct.UNTAG:
        return "Remove tags", "Each of these jobs loses the tags and keeps its others."
    operation = delegated_operation(act)
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
        "is_dangerous": not act.is_of_tags and delegated_operation(act).button.is_dangerous,
        "is_of_tags": act.is_of_tags,
    }


def _command(act: BulkAct, tags: Sequence[str], names: Sequence[str]) -> str:
    if act.is_of_tags:
        return shlex.join(["weir", act.value, ",".join(tag.strip() for tag in tags), *names])
    return shlex.join(["weir", "bulk", act.value, *names])
