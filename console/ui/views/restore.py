"""The restore page: choose a checkpoint, a version and a parallelism, read the effects, then restore.

The first form only shows the effects (by GET, and at every change if scripts run). The second form carries exactly the
values whose effects are shown, so that a restore never differs from its description.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import continuable, restorable
from console.jobs.models import Job, JobVersion
from console.jobs.services import ready_versions, require_parallelism
from console.operations.legality import allowed_operations
from console.operations.models import OperationKind
from console.operations.origin import Origin
from console.operations.restore import RestoreReport, report
from console.operations.selectors import latest_run
from console.ui.forms import RestoreForm, add_refusal
from console.ui.paging import TablePage, by_number, whole_number
from console.ui.views.actions import request_operation
from console.ui.views.page import page, require_login

_ROWS_PER_PAGE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """A choice and its effects. `refusal` rules the restore out.

    Without `report` the checkpoint is unreadable or the parallelism is out of bounds.
    """

    checkpoint: Checkpoint
    version: JobVersion
    parallelism: int
    was_parallelism: int
    report: RestoreReport | None
    refusal: Refused | None


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def restore(request: HttpRequest, pk: int) -> HttpResponse:
    job = get_object_or_404(Job, pk=pk)
    versions = tuple(ready_versions(job))
    form = RestoreForm(request.POST if request.method == "POST" else _choice(request, job, versions))
    refused: Refused | None = None
    if request.method == "POST" and form.is_valid():
        try:
            request_operation(request, job, OperationKind.RESTORE, _params(request, form))
        except Refused as error:
            refused = error
            add_refusal(form, (error.field or "").removeprefix("params."), error)
        else:
            return redirect("ui:job", job.pk)
    return _page(request, job, versions, form, refused)


def _page(
    request: HttpRequest, job: Job, versions: Sequence[JobVersion], form: RestoreForm, refused: Refused | None
) -> HttpResponse:
    acts = {found.act: found for found in allowed_operations(job, latest_run(job), request.user)}
    chosen = whole_number(str(form["checkpoint"].value() or ""))
    context = {
        "htmx": True,
        "job": job,
        "form": form,
        "act": acts[OperationKind.RESTORE],
        "stop": acts[OperationKind.STOP],  # must come first for a running job
        "plan": _plan(job, versions, form),
        "versions": versions,
        "checkpoints": _restorable_page(request, job, chosen),
        "chosen": chosen,
    }
    template = "jobs/_plan.html" if request.headers.get("HX-Request") else "jobs/restore.html"
    return page(
        request, template, context, status=refused.status if refused else 422 if request.method == "POST" else 200
    )


def _choice(request: HttpRequest, job: Job, versions: Sequence[JobVersion]) -> dict[str, Any]:
    """The values of the query, and defaults: newest checkpoint, newest ready version, its parallelism."""
    given = request.GET
    newest = continuable(job).first() or restorable(job).first()
    version = _version(versions, given.get("version")) or next(iter(versions), None)
    return {
        "checkpoint": given.get("checkpoint") or (newest.pk if newest else None),
        "version": given.get("version") or (version.pk if version else None),
        "parallelism": given.get("parallelism") or (version.parallelism if version else None),
    }


def _params(request: HttpRequest, form: RestoreForm) -> dict[str, Any]:
    accepted = {name: True for name in ("accept_repeated_output", "allow_unmapped") if request.POST.get(name) == "on"}
    return {**form.cleaned_data, **accepted}


def _version(versions: Sequence[JobVersion], given: str | None) -> JobVersion | None:
    return next((version for version in versions if version.pk == whole_number(given)), None)


def _plan(job: Job, versions: Sequence[JobVersion], form: RestoreForm) -> RestorePlan | None:
    """The plan; None if the choice is incomplete, as the form then shows."""
    chosen = {name: whole_number(str(form[name].value() or "")) for name in form.fields}
    checkpoint = Checkpoint.objects.select_related("run").filter(pk=chosen["checkpoint"] or 0, job=job).first()
    version = next((version for version in versions if version.pk == chosen["version"]), None)
    parallelism = chosen["parallelism"]
    if checkpoint is None or version is None or not parallelism:
        return None
    found, refusal = None, None
    try:
        require_parallelism(parallelism, version.max_parallelism)
        found = report(job, Origin.from_row(job, checkpoint), version, parallelism)
        refusal = found.refusal
    except Refused as refused:
        refusal = refused
    return RestorePlan(
        checkpoint=checkpoint,
        version=version,
        parallelism=parallelism,
        was_parallelism=checkpoint.run.parallelism,
        report=found,
        refusal=refusal,
    )


def _restorable_page(request: HttpRequest, job: Job, chosen: int | None) -> TablePage[Checkpoint]:
    """A page of restorable checkpoints. Every page includes the chosen checkpoint, so that paging keeps the choice."""
    rows = restorable(job)
    found = by_number(rows, whole_number(request.GET.get("before")), _ROWS_PER_PAGE)
    if chosen is None or any(row.pk == chosen for row in found.rows):
        return found
    return replace(found, rows=(*rows.filter(pk=chosen), *found.rows))
