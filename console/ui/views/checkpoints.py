"""The page of a checkpoint, and the statistics of a job's checkpoints."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from console import formats
from console.accounts.rights import operate_refusal
from console.checkpoints import selectors
from console.checkpoints.lanes import PHASE_NAMES, lanes_of
from console.checkpoints.models import Checkpoint, Kind, Status
from console.checkpoints.storage import target_roots
from console.formats import Quantity
from console.jobs.attempts import attempt_number
from console.jobs.models import Attempt, Job, Run
from console.metrics.live import live_metrics
from console.operations.kinds.snapshot.copy import copies_of
from console.operations.kinds.snapshot.discard import Discard, discards_under_way
from console.operations.kinds.snapshot.drill import drills_of
from console.operations.kinds.snapshot.review import review_history
from console.operations.legality import allowed_on, allowed_pin
from console.operations.models import OperationKind
from console.operations.selectors import operations_beside
from console.pages.explanations import explanation_of
from console.pages.lineage import request_of, restored_runs
from console.pages.restore_proof import proof_of
from console.pages.selectors import rows_of_snapshot_confirmation, runs_of
from console.runs.selectors import latest_run
from console.ui.checkpointlist import filtered_checkpoints
from console.ui.gantt import gantt
from console.ui.jobpage import show_progress
from console.ui.paging import text, whole_number
from console.ui.revision import revision
from console.ui.views.actions import request_or_explain
from console.ui.views.page import PageContent, page_or_blocks, require_login
from console.ui.views.reviews import user_names
from runtime.core.checkpoint.acknowledgements import PHASES
from runtime.core.checkpoint.statistics import Distribution, Summary

_RUNS = 6  #: newest runs in the filter
_DRILLS = 5  #: newest drills on the page of a checkpoint
_COPIES = 5  #: newest copies on the page of a savepoint
_RESTORED_RUNS = 20  #: newest runs that were restored from a checkpoint
_REVIEW_ENTRIES = 50  #: newest entries of the history of a review
_RECENT = 100  #: newest checkpoints, which may still change


# ---------------------------------------------------------------- page of a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLine:
    """An operator in a checkpoint. `phases_ms` are the maxima over its subtasks."""

    uid: str
    name: str
    finished: str
    subtasks: int | None
    state_bytes: int | None
    written_bytes: int | None
    share: float
    phases_ms: tuple[float | None, ...]


@require_safe
@require_login
def checkpoint(request: HttpRequest, pk: int) -> HttpResponse:
    rows = Checkpoint.objects.defer(None).select_related(
        "job", "run", "run__version", "reviewer", "assignee", "pinned_by"
    )
    found = get_object_or_404(rows.annotate(attempt_number=attempt_number()), pk=pk)
    is_savepoint = found.kind != Kind.CHECKPOINT

    def load_content() -> PageContent:
        show_progress(live_metrics(found.run), [found])
        now = timezone.now()
        graph = found.run.version.graph or {}
        names = {operator["uid"]: operator["name"] for operator in graph.get("operators", ())}
        lanes = lanes_of(found.acknowledgements, list(names))
        if lanes and found.status == Status.IN_PROGRESS:  # the live number may be older than the rows below it
            found.acknowledged = sum(lane.at_ms is not None for lane in lanes)
        only = text(request.GET.get("operator"))
        drills = tuple(drills_of(found.job).filter(params__checkpoint=pk).select_related("requested_by")[:_DRILLS])
        copies = tuple(copies_of(found).select_related("requested_by")[:_COPIES]) if is_savepoint else ()
        discards = tuple(discards_under_way(found)) if is_savepoint and found.discarded_at else ()
        context: dict[str, Any] = {
            "checkpoint": found,
            "job": found.job,
            "explanation": explanation_of(found, lanes, now),
            "gantt": gantt(lanes, names, found.took_ms(now), completed=found.status == Status.COMPLETED, only=only),
            "only": only,
            "phases": PHASE_NAMES.items(),
            "previous": selectors.previous_completed(found),
            "pin": allowed_pin(found, request.user),
            "copy": allowed_on(found, OperationKind.COPY, request.user) if is_savepoint else None,
            "copies": copies,
            "discards": discards,
            "request_of_it": request_of(found) if is_savepoint else None,
            "target_roots": target_roots(),
            "label_refusal": operate_refusal(request.user),
            "users": user_names(),
            "review_history": tuple(review_history(found)[:_REVIEW_ENTRIES]),
            "lines": operator_lines(found),
            "drills": drills,
            "proof": proof_of(found, drills),
            "restored_runs": restored_runs(found)[:_RESTORED_RUNS],
            "max_restored_runs": _RESTORED_RUNS,
            **_neighbours(found),
        }
        is_used = any(row.is_active for row in (*drills, *copies, *discards))
        return PageContent(context, settled=found.status != Status.IN_PROGRESS and not is_used)

    def load_revision() -> str:
        drills = drills_of(found.job).filter(params__checkpoint=pk)
        history = review_history(found)
        own, run = rows.filter(pk=pk), Run.objects.filter(pk=found.run_id)
        files = [(copies_of(found), _COPIES), (discards_under_way(found), 1)] if is_savepoint else []
        return revision(request, [(own, 1), (run, 1), (drills, _DRILLS), *files, (history, _REVIEW_ENTRIES)])

    return page_or_blocks(request, "checkpoints/detail.html", "checkpoints/_live.html", load_content, load_revision)


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def discard(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks for confirmation or shows why a discard is refused; POST discards the savepoint."""
    found = get_object_or_404(Checkpoint.objects.select_related("job", "run"), pk=pk)
    if request.method == "POST":
        request_or_explain(request, found.job, OperationKind.DISCARD, {"checkpoint": found.pk})
        return redirect("ui:checkpoint", found.pk)

    def load_content() -> PageContent:
        context = {
            "job": found.job, "run": found.run, "act": allowed_on(found, OperationKind.DISCARD, request.user),
            "asked": Discard().confirmation(found), "active": tuple(operations_beside(found)), "command": "discard",
            "number": found.number, "snapshot": found.pk,
        }  # fmt: skip
        return PageContent(context, settled=False)

    def load_revision() -> str:
        return revision(request, rows_of_snapshot_confirmation(found))

    return page_or_blocks(request, "jobs/confirm.html", "jobs/_confirmation.html", load_content, load_revision)


def operator_lines(checkpoint: Checkpoint) -> tuple[OperatorLine, ...]:
    """The operators in the order of the graph; operators that the version no longer has come last."""
    graph = checkpoint.run.version.graph or {}
    names = {o["uid"]: o["name"] for o in graph.get("operators", [])}
    order = list(names)
    rows = sorted(checkpoint.operators, key=lambda o: order.index(o["uid"]) if o["uid"] in names else len(order))
    largest = max((row.get("state_bytes") or 0 for row in rows), default=0)
    return tuple(_line(row, names, largest) for row in rows)


def _line(row: dict[str, Any], names: dict[str, str], largest: int) -> OperatorLine:
    held = row.get("state_bytes")
    return OperatorLine(
        uid=row["uid"],
        name=names.get(row["uid"], row["uid"]),
        finished=row.get("finished", "running"),
        subtasks=row.get("subtasks"),
        state_bytes=held,
        written_bytes=row.get("written_bytes"),
        share=round((held or 0) / largest * 72, 1) if largest else 0.0,
        phases_ms=tuple(row.get(f"max_{phase}_ms") for phase in PHASES),
    )


def _neighbours(found: Checkpoint) -> dict[str, Any]:
    """`older` and `newer`: key and number of the checkpoints of the job beside `found`, if there are any. A query."""
    own = Checkpoint.objects.filter(job=found.job_id).values("pk", "number")
    newer, older = own.filter(number__gt=found.number), own.filter(number__lt=found.number)
    rows = newer.order_by("number")[:1].union(older.order_by("-number")[:1])
    return {"newer" if row["number"] > found.number else "older": row for row in rows}


# ---------------------------------------------------------------- list and statistics of a job's checkpoints


@require_safe
@require_login
def checkpoint_list(request: HttpRequest, pk: int) -> HttpResponse:
    """The checkpoints of a job that match the filters in the address. `number` leads to the page of that checkpoint."""
    job = get_object_or_404(Job, pk=pk)
    number = text(request.GET.get("number"))
    if number and not request.headers.get("HX-Request"):
        chosen = selectors.job_checkpoints(job).filter(number=whole_number(number) or 0).only("pk").first()
        if chosen is not None:
            return redirect("ui:checkpoint", chosen.pk)
    run = latest_run(job)

    def load_content() -> PageContent:
        given = request.GET.copy()
        given.pop("number", None)
        comparing = whole_number(given.pop("compare", [""])[-1])
        found = filtered_checkpoints(job, given)
        if found.page is not None and run is not None:
            show_progress(live_metrics(run), found.page.rows)
        return PageContent(
            {"job": job, "found": found, "absent": number, "comparing": comparing},
            settled=False,
        )

    def load_revision() -> str:
        newest = (Checkpoint.objects.filter(job=job).order_by("-number"), _RECENT)
        return revision(request, [newest], [(run.pk, run.state)] if run else [])

    return page_or_blocks(request, "checkpoints/list.html", "checkpoints/_list.html", load_content, load_revision)


@require_safe
@require_login
def checkpoint_statistics(request: HttpRequest, pk: int) -> HttpResponse:
    """Counts, the latest checkpoint of each kind, distributions and failures, of the job or of a single run."""
    job = get_object_or_404(Job, pk=pk)
    chosen = whole_number(request.GET.get("run"))
    run = None if chosen is None else get_object_or_404(Run.objects.select_related("version"), pk=chosen, job=job)
    runs = tuple(runs_of(job)[:_RUNS])

    def load_content() -> PageContent:
        version = run.version if run else runs[0].version if runs else None
        found = selectors.statistics(job, run)
        context = {
            "job": job,
            "run": run,
            "runs": runs,
            "version": version,
            "tolerated": (tolerated := version.settings.get("tolerable_failed_checkpoints") if version else None),
            "has_limit": tolerated is not None,
            "promise": version.guarantee if version else None,
            "statistics": found,
            "spreads": spread_lines(found.summary) if found.summary else (),
        }
        return PageContent(context, settled=False)

    def load_revision() -> str:
        newest = (Checkpoint.objects.filter(job=job).order_by("-number"), _RECENT)
        attempts = (Attempt.objects.filter(run__job=job).order_by("-token"), 1)
        return revision(request, [newest, attempts], [(row.pk, row.state) for row in runs])

    template, blocks = "checkpoints/statistics.html", "checkpoints/_statistics.html"
    return page_or_blocks(request, template, blocks, load_content, load_revision)


def spread_lines(summary: Summary) -> tuple[tuple[str, tuple[Quantity, ...]], ...]:
    """Measures and their distribution: min, average, percentiles, max."""
    return (
        ("Duration", tuple(formats.duration(ms) for ms in _values(summary.duration_ms))),
        ("Full size", tuple(formats.size(round(nbytes)) for nbytes in _values(summary.state_bytes))),
        ("Written", tuple(formats.size(round(nbytes)) for nbytes in _values(summary.written_bytes))),
        ("Longest alignment", tuple(formats.duration(ms) for ms in _values(summary.alignment_ms))),
    )


def _values(spread: Distribution) -> tuple[float, ...]:
    return (spread.least, spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.most)
