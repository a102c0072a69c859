"""The restore page: choose a checkpoint, a version and a parallelism, read the effects, then restore.

While a run of the job is active, the page requests a rollback, which ends the run before the restore.

The first form only shows the effects (by GET, and at every change if scripts run). The second form carries exactly the
values whose effects are shown, so that a restore never differs from its description. A poll carries them too: while the
page is open, it shows operations of others, and disables the restore once its effects have changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint, Kind
from console.checkpoints.selectors import FoundCheckpoints, continuable, restorable
from console.jobs.differences import Difference, differences
from console.jobs.models import Job, JobVersion, Run
from console.jobs.services import parallelism_limit, pipeline_schema, ready_versions, require_parallelism
from console.metrics.selectors import records_read
from console.operations.expected_times import ExpectedDuration, expected_durations
from console.operations.kinds.job.rollback import EndRun
from console.operations.legality import AllowedOperation, allowed_operations
from console.operations.models import OperationKind
from console.operations.restores.effects import RestoreReport, report, run_to_end
from console.operations.restores.origin import Origin
from console.operations.selectors import active_operations
from console.pages.selectors import rows_of_restore
from console.pages.workers import wait_of_new_run
from console.runs.selectors import latest_run
from console.ui.forms.forms import RestoreForm, add_refusal
from console.ui.live.page import LivePage, PageContent, page
from console.ui.live.revision import revision
from console.ui.paging import TablePage, several_by_number, text, whole_number
from console.ui.views.actions import request_operation
from runtime.core.job.lifecycle import FLOWING_STATES
from runtime.core.restore.mapping import OperatorMapping

_ROWS_PER_PAGE: Final = 6  #: of each group
_COLUMNS: Final = (
    "number", "kind", "name", "pinned_at", "run", "triggered_at", "size_bytes", "finished_operators",
)  # fmt: skip
#: Title, query parameter of the older pages, and kinds. Drained savepoints come last: their windows fired early.
_GROUPS: Final = (
    ("Savepoints", "before_savepoint", (Kind.SAVEPOINT, Kind.STOP)),
    ("Checkpoints", "before", (Kind.CHECKPOINT,)),
    ("Drained savepoints", "before_drained", (Kind.DRAIN,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """A choice and its effects. `refusal` rules the restore out.

    Without `report` the checkpoint is unreadable or the parallelism is out of bounds. `changes`: from the version of
    the latest run `base` to the chosen version. `stop`, `expected`: durations of a stop of `base` with a savepoint, and
    until the new run is running.
    """

    checkpoint: Checkpoint
    version: JobVersion
    parallelism: int
    was_parallelism: int
    report: RestoreReport | None
    refusal: Refused | None
    base: Run | None
    changes: tuple[Difference, ...]
    stop: ExpectedDuration | None
    expected: ExpectedDuration | None

    @property
    def plan_hash(self) -> str:
        return self.report.plan_hash if self.report else ""

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
    """The snapshots of some kinds that match the search. `newest`, `older`: addresses of these pages."""

    title: str
    kinds: tuple[Kind, ...]
    page: TablePage[Checkpoint]
    newest: str
    older: str

    @property
    def is_empty(self) -> bool:
        return self.page.first and not self.page.rows


class RestorePage(LivePage):
    template, blocks = "jobs/restore.html", "jobs/_restore_live.html"

    def open(self, pk: int) -> HttpResponse | None:
        self.job = get_object_or_404(Job, pk=pk)
        self.run = latest_run(self.job)
        self.versions = tuple(ready_versions(self.job))
        is_open = self.request.method != "POST" and not self.request.GET.get("checkpoint")
        self.suggested = _with_facts(continuable(self.job)).first() if is_open else None
        self.form = RestoreForm(
            self.request.POST if self.request.method == "POST" else _choice(self.request, self.suggested, self.versions)
        )
        self.status = 422 if self.request.method == "POST" else 200
        if self.request.method == "POST" and self.form.is_valid():
            try:
                params = _params(self.request, self.form)
                kind = OperationKind.ROLLBACK if "end_run" in params else OperationKind.RESTORE
                request_operation(self.request, self.job, kind, params)
            except Refused as error:
                self.status = error.status
                add_refusal(self.form, (error.field or "").removeprefix("params."), error)
            else:
                return redirect("ui:job", self.job.pk)
        return None

    def response(self) -> HttpResponse:
        if _asks_for_plan(self.request):
            return page(self.request, "jobs/_plan_answer.html", {**self.content(), "alone": True})
        return super().response()

    def content(self) -> PageContent:
        return _context(self.request, self.job, self.run, self.versions, self.form, self.suggested)

    def rows(self) -> str:
        return revision(
            self.request, rows_of_restore(self.job, whole_number(self.request.GET.get("checkpoint"))), wait_of_new_run()
        )


restore = RestorePage.view(posts=True)


def _asks_for_plan(request: HttpRequest) -> bool:
    """Whether a script asks for the plan of another choice."""
    return request.headers.get("HX-Target") == "plan"


def _context(
    request: HttpRequest,
    job: Job,
    run: Run | None,
    versions: Sequence[JobVersion],
    form: RestoreForm,
    suggested: Checkpoint | None,
) -> dict[str, Any]:
    ends = run_to_end(run)
    kind = OperationKind.RESTORE if ends is None else OperationKind.ROLLBACK
    active = tuple(active_operations(job))
    acts = {operation.act: operation for operation in allowed_operations(job, run, request.user, active)}
    snapshot_pk = whole_number(str(form["checkpoint"].value() or ""))
    ways = [] if ends is None else [acts[OperationKind(way)] for way in EndRun]
    is_poll = "HX-Request" in request.headers and not _asks_for_plan(request)
    is_shown, search = not is_poll or "shown" in request.GET, text(request.GET.get("q"))
    plan = _plan(job, run, versions, form, suggested) if is_shown else None
    most = max(map(parallelism_limit, versions), default=None)
    snapshots = _snapshots(request, job, snapshot_pk, search)
    return {
        "htmx": True,
        "job": job,
        "form": form,
        "act": acts[kind],
        "active": active,
        "run": run,
        "ends": ways,
        "wait": "" if ways else wait_of_new_run(),  # the place of a run that ends first becomes free
        "required": _required_params(plan.report, ways) if plan and plan.report else {},
        "plan": plan,
        "read_since": None if is_poll or plan is None else _records_since(plan, run),
        "is_outdated": is_poll and request.GET.get("plan_hash", "") != (plan.plan_hash if plan else ""),
        "versions": versions,
        "most": most,
        "limit": parallelism_limit(plan.version) if plan else most,
        "snapshots": snapshots,
        "has_snapshots": bool(search) or not all(group.is_empty for group in snapshots),
        "search": search,
        "chosen": snapshot_pk,
    }


def _required_params(report: RestoreReport, ends: Sequence[AllowedOperation]) -> dict[str, Any]:
    """The parameters with which a request accepts the plan; `ends`: the ways to end the run before a rollback."""
    return {
        "end_run": next((way.act.value for way in ends if way.enabled), EndRun.STOP.value) if ends else None,
        "accept_repeated_output": bool(ends) or report.repeated is not None,
        "allow_unmapped": report.lost is not None,
    }


def _choice(request: HttpRequest, suggested: Checkpoint | None, versions: Sequence[JobVersion]) -> dict[str, Any]:
    """The values of the query, and defaults: the suggested checkpoint, newest ready version, its parallelism.

    The suggestion is the newest checkpoint to continue from. A drained or damaged one is never suggested.
    """
    query = request.GET
    version = _version(versions, query.get("version")) or next(iter(versions), None)
    return {
        "checkpoint": query.get("checkpoint") or (suggested.pk if suggested else None),
        "version": query.get("version") or (version.pk if version else None),
        "parallelism": query.get("parallelism") or (version.parallelism if version else None),
    }


def _params(request: HttpRequest, form: RestoreForm) -> dict[str, Any]:
    accepted = {name: True for name in ("accept_repeated_output", "allow_unmapped") if request.POST.get(name) == "on"}
    fields = {name: value for name in ("plan_hash", "end_run") if (value := request.POST.get(name))}
    return {**form.cleaned_data, **accepted, **fields}


def _version(versions: Sequence[JobVersion], pk: str | None) -> JobVersion | None:
    return next((version for version in versions if version.pk == whole_number(pk)), None)


def _plan(
    job: Job,
    run: Run | None,
    versions: Sequence[JobVersion],
    form: RestoreForm,
    suggested: Checkpoint | None,
) -> RestorePlan | None:
    """The plan; None if the choice is incomplete, as the form then shows."""
    choice = {name: whole_number(str(form[name].value() or "")) for name in form.fields}
    found_rows = Checkpoint.objects.filter(pk=choice["checkpoint"] or 0, job=job)
    checkpoint = suggested or _with_facts(found_rows).first()
    version = next((version for version in versions if version.pk == choice["version"]), None)
    parallelism = choice["parallelism"]
    if checkpoint is None or version is None or not parallelism:
        return None
    restore_report, refusal = None, None
    stop, expected = expected_durations(job.pk, (OperationKind.STOP, OperationKind.RESTORE))
    try:
        require_parallelism(parallelism, version.max_parallelism)
        restore_report = report(job, Origin.from_row(job, checkpoint), version, parallelism, ends=run_to_end(run))
        refusal = restore_report.refusal
    except Refused as refused:
        refusal = refused
    return RestorePlan(
        checkpoint=checkpoint,
        version=version,
        parallelism=parallelism,
        was_parallelism=checkpoint.run.parallelism,
        report=restore_report,
        refusal=refusal,
        base=run,
        changes=differences(run.version, version, pipeline_schema(job.pipeline))
        if run and run.version_id != version.pk
        else (),
        stop=stop if run_to_end(run) else None,
        expected=expected,
    )


def _records_since(plan: RestorePlan, latest: Run | None) -> int | None:
    """Records that the job has read since the checkpoint of a plan that repeats output; None for another plan."""
    checkpoint = plan.checkpoint
    if plan.refusal or plan.report is None or plan.report.repeated is None:
        return None
    if latest is None or latest.pk == checkpoint.run_id:
        runs = [checkpoint.run_id]
    else:
        later = Run.objects.filter(job=checkpoint.job_id, pk__gte=checkpoint.run_id)
        runs = list(later.values_list("pk", flat=True))
    is_flowing = latest is not None and latest.run_state in FLOWING_STATES
    return records_read(runs, checkpoint.triggered_at, timezone.now(), is_flowing=is_flowing)


def _with_facts(rows: FoundCheckpoints) -> FoundCheckpoints:
    """The rows with what a plan reads of them: their run, and the last check of their files."""
    return rows.select_related("run", "verification__operation").defer("verification__files")


def _snapshots(request: HttpRequest, job: Job, snapshot_pk: int | None, search: str) -> tuple[Snapshots, ...]:
    """A page of each group of `_GROUPS`, which includes the chosen snapshot. Two queries at most."""
    rows = restorable(job).only(*_COLUMNS)
    matches = rows
    if search:
        matches = rows.filter(
            Q(name__icontains=search) | Q(note__icontains=search) | Q(number=whole_number(search) or 0)
        )
    tables = [
        (matches.filter(kind__in=kinds), whole_number(request.GET.get(position))) for _, position, kinds in _GROUPS
    ]
    pages = several_by_number(tables, _ROWS_PER_PAGE)
    groups = tuple(_group(request, page, *group) for page, group in zip(pages, _GROUPS, strict=True))
    if snapshot_pk is None or any(row.pk == snapshot_pk for group in groups for row in group.page.rows):
        return groups
    snapshot = rows.filter(pk=snapshot_pk).first()
    return groups if snapshot is None else tuple(_with_choice(group, snapshot) for group in groups)


def _group(
    request: HttpRequest, page: TablePage[Checkpoint], title: str, position: str, kinds: tuple[Kind, ...]
) -> Snapshots:
    older = _address(request, position, page.older) if page.older else ""
    return Snapshots(title=title, kinds=kinds, page=page, newest=_address(request, position, None), older=older)


def _address(request: HttpRequest, position: str, before: int | None) -> str:
    query = request.GET.copy()
    query.pop(position, None)
    if before is not None:
        query[position] = str(before)
    return f"{request.path}?{query.urlencode()}"


def _with_choice(group: Snapshots, snapshot: Checkpoint) -> Snapshots:
    if snapshot.kind not in group.kinds:
        return group
    return replace(group, page=replace(group.page, rows=(snapshot, *group.page.rows)))
