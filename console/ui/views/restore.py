"""The restore page: choose a checkpoint, a version and a parallelism, read the effects, then restore.

The first form only shows the effects (by GET, and at every change if scripts run). The second form carries exactly the
values whose effects are shown, so that a restore never differs from its description.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint, Kind
from console.checkpoints.selectors import FoundCheckpoints, continuable, restorable
from console.jobs.models import Job, JobVersion
from console.jobs.services import parallelism_limit, ready_versions, require_parallelism
from console.operations.legality import allowed_operations
from console.operations.models import OperationKind
from console.operations.origin import Origin
from console.operations.restore import RestoreReport, report
from console.operations.selectors import latest_run
from console.ui.forms import RestoreForm, add_refusal
from console.ui.paging import TablePage, by_number, text, whole_number
from console.ui.views.actions import request_operation
from console.ui.views.page import page, require_login
from runtime.core.restore.mapping import OperatorMapping

_ROWS_PER_PAGE = 6  #: of each kind


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

    @property
    def differing(self) -> tuple[OperatorMapping, ...]:
        return tuple(row for row in self._operators if not row.is_unchanged)

    @property
    def unchanged(self) -> tuple[OperatorMapping, ...]:
        return tuple(row for row in self._operators if row.is_unchanged)

    @property
    def _operators(self) -> tuple[OperatorMapping, ...]:
        return self.report.mapping.operators if self.report else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshots:
    """The snapshots of a kind that match the search. `position`: query parameter of their older pages."""

    title: str
    position: str
    page: TablePage[Checkpoint]


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
    search, plan = text(request.GET.get("q")), _plan(job, versions, form)
    most = max(map(parallelism_limit, versions), default=None)
    context = {
        "htmx": True,
        "job": job,
        "form": form,
        "act": acts[OperationKind.RESTORE],
        "stop": acts[OperationKind.STOP],  # must come first for a running job
        "plan": plan,
        "versions": versions,
        "most": most,
        "limit": parallelism_limit(plan.version) if plan else most,
        "fragment": bool(request.headers.get("HX-Request")),
        "snapshots": _snapshots(request, job, chosen, search),
        "search": search,
        "chosen": chosen,
    }
    template = "jobs/_plan_answer.html" if context["fragment"] else "jobs/restore.html"
    return page(
        request, template, context, status=refused.status if refused else 422 if request.method == "POST" else 200
    )


def _choice(request: HttpRequest, job: Job, versions: Sequence[JobVersion]) -> dict[str, Any]:
    """The values of the query, and defaults: newest checkpoint to continue from, newest ready version, its parallelism.

    A drained savepoint is never the default.
    """
    given = request.GET
    newest = None if given.get("checkpoint") else continuable(job).first()
    version = _version(versions, given.get("version")) or next(iter(versions), None)
    return {
        "checkpoint": given.get("checkpoint") or (newest.pk if newest else None),
        "version": given.get("version") or (version.pk if version else None),
        "parallelism": given.get("parallelism") or (version.parallelism if version else None),
    }


def _params(request: HttpRequest, form: RestoreForm) -> dict[str, Any]:
    accepted = {name: True for name in ("accept_repeated_output", "allow_unmapped") if request.POST.get(name) == "on"}
    shown = {"plan_hash": found} if (found := request.POST.get("plan_hash")) else {}
    return {**form.cleaned_data, **accepted, **shown}


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


def _snapshots(request: HttpRequest, job: Job, chosen: int | None, search: str) -> tuple[Snapshots, ...]:
    """Savepoints, then periodic checkpoints; a page of each. Every page includes the chosen snapshot."""
    rows = restorable(job)
    found = rows
    if search:
        found = rows.filter(Q(name__icontains=search) | Q(note__icontains=search) | Q(number=whole_number(search) or 0))
    groups = (
        _page_of("Savepoints", "before_savepoint", found.exclude(kind=Kind.CHECKPOINT), request),
        _page_of("Checkpoints", "before", found.filter(kind=Kind.CHECKPOINT), request),
    )
    if chosen is None or any(row.pk == chosen for group in groups for row in group.page.rows):
        return groups
    own = rows.filter(pk=chosen).first()
    return groups if own is None else tuple(_with_choice(group, own) for group in groups)


def _page_of(title: str, position: str, rows: FoundCheckpoints, request: HttpRequest) -> Snapshots:
    shown = by_number(rows, whole_number(request.GET.get(position)), _ROWS_PER_PAGE)
    return Snapshots(title=title, position=position, page=shown)


def _with_choice(group: Snapshots, own: Checkpoint) -> Snapshots:
    if (own.kind == Kind.CHECKPOINT) != (group.position == "before"):
        return group
    return replace(group, page=replace(group.page, rows=(own, *group.page.rows)))
