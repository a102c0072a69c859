"""Savepoint, stop or drain of several jobs: a confirmation with a line per job, then the result of each request."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.views.decorators.http import require_http_methods

from console.accounts.middleware import request_id_of
from console.accounts.refusals import Refused
from console.accounts.rights import operate_refusal
from console.jobs.models import Job, Run
from console.operations.legality import run_conflict
from console.operations.models import ACTIVE_STATES, Operation, OperationKind
from console.operations.selectors import with_latest_run
from console.operations.services import OperationRequestContext
from console.operations.services import request as ask
from console.ui.paging import whole_number
from console.ui.views.page import page, require_login, user_of
from runtime.core.job.lifecycle import RunAct

MAX_JOBS: Final = 100
_TITLES: Final = {
    OperationKind.SAVEPOINT: "Take savepoints",
    OperationKind.STOP: "Stop with savepoint",
    OperationKind.DRAIN: "Drain and finish",
}
_EFFECTS: Final = {
    OperationKind.SAVEPOINT: "A savepoint is taken of each of these jobs, which continue to run.",
    OperationKind.STOP: "Each of these jobs takes a savepoint, commits the output up to it and ends.",
    OperationKind.DRAIN: (
        "The sources of each of these jobs end. Every window fires early, all output is committed, and the jobs "
        "finish. They should not be continued from these savepoints."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLine:
    """A selected job. `refusal`: why it cannot be done, or was refused; `operation`: the accepted request."""

    job: Job
    run: Run | None
    refusal: str = ""
    operation: Operation | None = None


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def bulk(request: HttpRequest) -> HttpResponse:
    """GET asks for confirmation; POST sends a request per job and shows each result. A refusal stops no other job."""
    given = request.POST if request.method == "POST" else request.GET
    kind = next((kind for kind in _TITLES if kind == given.get("kind")), None)
    numbers = {number for text in given.getlist("job") if (number := whole_number(text)) is not None}
    if kind is None or len(numbers) > MAX_JOBS:
        return HttpResponseBadRequest(f"kind: savepoint, stop or drain; at most {MAX_JOBS} jobs.", "text/plain")
    lines = _lines(kind, sorted(numbers), operate_refusal(request.user) or "")
    if request.method == "POST":
        lines = [_request_one(request, kind, line) for line in lines]
    context = {
        "kind": kind,
        "title": _TITLES[kind],
        "effect": _EFFECTS[kind],
        "lines": lines,
        "possible": sum(not line.refusal for line in lines),
        "command": shlex.join(["weirctl", "bulk", kind, *(line.job.name for line in lines)]),
        "is_done": request.method == "POST",
        "is_dangerous": kind is OperationKind.DRAIN,
    }
    return page(request, "jobs/bulk.html", context)


def _lines(kind: OperationKind, numbers: Sequence[int], refused: str) -> list[BulkLine]:
    """The selected jobs by name, in three queries."""
    jobs: list[Any] = list(with_latest_run().filter(pk__in=numbers).order_by("name"))
    runs = Run.objects.select_related("version").in_bulk([job.run_pk for job in jobs])
    ending: dict[int | None, list[Operation]] = {}
    for row in Operation.objects.filter(run__in=runs, state__in=ACTIVE_STATES):
        ending.setdefault(row.run_id, []).append(row)
    found = []
    for job in jobs:
        run = runs.get(job.run_pk)
        conflict = run_conflict(run, RunAct(kind), ending.get(job.run_pk, ()))
        found.append(BulkLine(job=job, run=run, refusal=refused or (conflict.detail if conflict else "")))
    return found


def _request_one(request: HttpRequest, kind: OperationKind, line: BulkLine) -> BulkLine:
    key = request.POST.get("key")
    asked = OperationRequestContext(
        user=user_of(request),
        reason=request.POST.get("reason", "").strip(),
        request_id=request_id_of(request),
        idempotency_key=f"{key}-{line.job.pk}" if key else None,
    )
    try:
        return BulkLine(job=line.job, run=line.run, operation=ask(asked, line.job, kind).operation)
    except Refused as refused:
        return BulkLine(job=line.job, run=line.run, refusal=refused.detail)
