"""The page of a checkpoint, and the statistics of a job's checkpoints."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone

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
from console.ui.gantt import gantt
from console.ui.job_page import show_progress
from console.ui.lists.checkpoint_list import filtered_checkpoints
from console.ui.live.page import LivePage, PageContent
from console.ui.live.revision import revision
from console.ui.paging import text, whole_number
from console.ui.views.actions import request_or_explain
from console.ui.views.checkpoints.reviews import user_names
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


class CheckpointPage(LivePage):
    template, blocks = "checkpoints/detail.html", "checkpoints/_live.html"

    def open(self, pk: int) -> None:
        rows = Checkpoint.objects.defer(None).select_related(
            "job", "run", "run__version", "reviewer", "assignee", "pinned_by"
        )
        self.checkpoint = get_object_or_404(rows.annotate(attempt_number=attempt_number()), pk=pk)
        self.is_savepoint = self.checkpoint.kind != Kind.CHECKPOINT

    def content(self) -> PageContent:
        show_progress(live_metrics(self.checkpoint.run), [self.checkpoint])
        now = timezone.now()
        graph = self.checkpoint.run.version.graph or {}
        names = {operator["uid"]: operator["name"] for operator in graph.get("operators", ())}
        lanes = lanes_of(self.checkpoint.acknowledgements, list(names))
        if (
            lanes and self.checkpoint.status == Status.IN_PROGRESS
        ):  # the live number may be older than the rows below it
            self.checkpoint.acknowledged = sum(lane.at_ms is not None for lane in lanes)
        only = text(self.request.GET.get("operator"))
        drills = tuple(
            drills_of(self.checkpoint.job)
            .filter(params__checkpoint=self.checkpoint.pk)
            .select_related("requested_by")[:_DRILLS]
        )
        copies = tuple(copies_of(self.checkpoint).select_related("requested_by")[:_COPIES]) if self.is_savepoint else ()
        discards = (
            tuple(discards_under_way(self.checkpoint)) if self.is_savepoint and self.checkpoint.discarded_at else ()
        )
        context: dict[str, Any] = {
            "checkpoint": self.checkpoint,
            "job": self.checkpoint.job,
            "explanation": explanation_of(self.checkpoint, lanes, now),
            "gantt": gantt(
                lanes,
                names,
                self.checkpoint.took_ms(now),
                completed=self.checkpoint.status == Status.COMPLETED,
                only=only,
            ),
            "only": only,
            "phases": PHASE_NAMES.items(),
            "previous": selectors.previous_completed(self.checkpoint),
            "pin": allowed_pin(self.checkpoint, self.request.user),
            "copy": allowed_on(self.checkpoint, OperationKind.COPY, self.request.user) if self.is_savepoint else None,
            "copies": copies,
            "discards": discards,
            "request_of_it": request_of(self.checkpoint) if self.is_savepoint else None,
            "target_roots": target_roots(),
            "label_refusal": operate_refusal(self.request.user),
            "users": user_names(),
            "review_history": tuple(review_history(self.checkpoint)[:_REVIEW_ENTRIES]),
            "lines": operator_lines(self.checkpoint),
            "drills": drills,
            "proof": proof_of(self.checkpoint, drills),
            "restored_runs": restored_runs(self.checkpoint)[:_RESTORED_RUNS],
            "max_restored_runs": _RESTORED_RUNS,
            **_neighbours(self.checkpoint),
        }
        return context

    def rows(self) -> str:
        drills = drills_of(self.checkpoint.job).filter(params__checkpoint=self.checkpoint.pk)
        history = review_history(self.checkpoint)
        run = Run.objects.filter(pk=self.checkpoint.run_id)
        files = (
            [(copies_of(self.checkpoint), _COPIES), (discards_under_way(self.checkpoint), 1)]
            if self.is_savepoint
            else []
        )
        return revision(
            self.request,
            [
                (Checkpoint.objects.filter(pk=self.checkpoint.pk), 1),
                (run, 1),
                (drills, _DRILLS),
                *files,
                (history, _REVIEW_ENTRIES),
            ],
        )


checkpoint = CheckpointPage.view()


class DiscardConfirmation(LivePage):
    """GET asks for confirmation or shows why a discard is refused; POST discards the savepoint."""

    template, blocks = "jobs/confirm.html", "jobs/_confirmation.html"

    def open(self, pk: int) -> HttpResponse | None:
        self.checkpoint = get_object_or_404(Checkpoint.objects.select_related("job", "run"), pk=pk)
        if self.request.method == "POST":
            request_or_explain(
                self.request, self.checkpoint.job, OperationKind.DISCARD, {"checkpoint": self.checkpoint.pk}
            )
            return redirect("ui:checkpoint", self.checkpoint.pk)
        return None

    def content(self) -> PageContent:
        return {
            "job": self.checkpoint.job,
            "run": self.checkpoint.run,
            "act": allowed_on(self.checkpoint, OperationKind.DISCARD, self.request.user),
            "asked": Discard().confirmation(self.checkpoint),
            "active": tuple(operations_beside(self.checkpoint)),
            "command": "discard",
            "number": self.checkpoint.number,
            "snapshot": self.checkpoint.pk,
        }

    def rows(self) -> str:
        return revision(self.request, rows_of_snapshot_confirmation(self.checkpoint))


discard = DiscardConfirmation.view(posts=True)


def operator_lines(checkpoint: Checkpoint) -> tuple[OperatorLine, ...]:
    """The operators in the order of the graph; operators that the version no longer has come last."""
    graph = checkpoint.run.version.graph or {}
    names = {o["uid"]: o["name"] for o in graph.get("operators", [])}
    order = list(names)
    rows = sorted(checkpoint.operators, key=lambda o: order.index(o["uid"]) if o["uid"] in names else len(order))
    largest = max((row.get("state_bytes") or 0 for row in rows), default=0)
    return tuple(_line(row, names, largest) for row in rows)


def _line(row: dict[str, Any], names: dict[str, str], largest: int) -> OperatorLine:
    size = row.get("state_bytes")
    return OperatorLine(
        uid=row["uid"],
        name=names.get(row["uid"], row["uid"]),
        finished=row.get("finished", "running"),
        subtasks=row.get("subtasks"),
        state_bytes=size,
        written_bytes=row.get("written_bytes"),
        share=round((size or 0) / largest * 72, 1) if largest else 0.0,
        phases_ms=tuple(row.get(f"max_{phase}_ms") for phase in PHASES),
    )


def _neighbours(checkpoint: Checkpoint) -> dict[str, Any]:
    """`older` and `newer`: key and number of the neighbours of `checkpoint` in its job, if there are any. A query."""
    siblings = Checkpoint.objects.filter(job=checkpoint.job_id).values("pk", "number")
    newer, older = siblings.filter(number__gt=checkpoint.number), siblings.filter(number__lt=checkpoint.number)
    rows = newer.order_by("number")[:1].union(older.order_by("-number")[:1])
    return {"newer" if row["number"] > checkpoint.number else "older": row for row in rows}


# ---------------------------------------------------------------- list and statistics of a job's checkpoints


class CheckpointList(LivePage):
    """The checkpoints of a job that match the filters in the address. `number` leads to the page of that checkpoint."""

    template, blocks = "checkpoints/list.html", "checkpoints/_list.html"

    def open(self, pk: int) -> HttpResponse | None:
        self.job = get_object_or_404(Job, pk=pk)
        self.number = text(self.request.GET.get("number"))
        if self.number and not self.request.headers.get("HX-Request"):
            checkpoint = (
                selectors.job_checkpoints(self.job).filter(number=whole_number(self.number) or 0).only("pk").first()
            )
            if checkpoint is not None:
                return redirect("ui:checkpoint", checkpoint.pk)
        self.run = latest_run(self.job)
        return None

    def content(self) -> PageContent:
        query = self.request.GET.copy()
        query.pop("number", None)
        comparing = whole_number(query.pop("compare", [""])[-1])
        listing = filtered_checkpoints(self.job, query)
        if listing.page is not None and self.run is not None:
            show_progress(live_metrics(self.run), listing.page.rows)
        return {"job": self.job, "found": listing, "absent": self.number, "comparing": comparing}

    def rows(self) -> str:
        newest = (Checkpoint.objects.filter(job=self.job).order_by("-number"), _RECENT)
        return revision(self.request, [newest], [(self.run.pk, self.run.state)] if self.run else [])


checkpoint_list = CheckpointList.view()


class CheckpointStatistics(LivePage):
    """Counts, the latest checkpoint of each kind, distributions and failures, of the job or of a single run."""

    template, blocks = "checkpoints/statistics.html", "checkpoints/_statistics.html"

    def open(self, pk: int) -> None:
        self.job = get_object_or_404(Job, pk=pk)
        run_pk = whole_number(self.request.GET.get("run"))
        self.run = (
            None
            if run_pk is None
            else get_object_or_404(Run.objects.select_related("version"), pk=run_pk, job=self.job)
        )
        self.runs = tuple(runs_of(self.job)[:_RUNS])

    def content(self) -> PageContent:
        version = self.run.version if self.run else self.runs[0].version if self.runs else None
        statistics = selectors.statistics(self.job, self.run)
        return {
            "job": self.job,
            "run": self.run,
            "runs": self.runs,
            "version": version,
            "tolerated": (tolerated := version.settings.get("tolerable_failed_checkpoints") if version else None),
            "has_limit": tolerated is not None,
            "promise": version.guarantee if version else None,
            "statistics": statistics,
            "spreads": spread_lines(statistics.summary) if statistics.summary else (),
        }

    def rows(self) -> str:
        newest = (Checkpoint.objects.filter(job=self.job).order_by("-number"), _RECENT)
        attempts = (Attempt.objects.filter(run__job=self.job).order_by("-token"), 1)
        return revision(self.request, [newest, attempts], [(row.pk, row.state) for row in self.runs])


checkpoint_statistics = CheckpointStatistics.view()


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
