"""Events of a job on the time axis: restarts, failures, savepoints, new versions and operations. A single query."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Exists, F, OuterRef, QuerySet, Subquery, TextField, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce, Concat
from django.urls import reverse

from console.checkpoints.models import Checkpoint, Kind
from console.jobs.models import Attempt, Job, JobVersion, Run
from console.operations.models import JOB_OPERATIONS, Operation, OperationKind
from console.ui.plots.window import Window
from runtime.core.job.lifecycle import RunState

MAX_MARKS: Final = 60  #: newest events of a kind that are drawn
_TEXT: Final = TextField()
_COLUMNS: Final = ("mark", "mark_at", "mark_ref", "mark_words")


@dataclass(frozen=True, slots=True)
class Mark:
    """An event. `at` is a percentage of the axis, `has_rule`: it is drawn through all plots."""

    kind: str
    at: float
    time: datetime
    about: str
    href: str

    @property
    def has_rule(self) -> bool:
        return self.kind in ("restart", "failure")


@dataclass(frozen=True, slots=True)
class _Kind:
    """The rows of a kind of event; `about` and `href` are of the reference and the words of a row."""

    rows: Callable[[Job], QuerySet[Any]]
    time: str
    ref: Any
    words: Any
    about: Callable[[str, str], str]
    href: Callable[[str, str], str]


def _restarts(job: Job) -> QuerySet[Any]:
    earlier = Attempt.objects.filter(run=OuterRef("run"), token__lt=OuterRef("token")).order_by("-token")
    attempts = Attempt.objects.filter(Exists(earlier), run__job=job)
    return attempts.annotate(cause=Subquery(earlier.values("reason")[:1]))


def _operations(job: Job) -> QuerySet[Any]:
    """Operations that change the run; savepoints have marks of their own."""
    marked = [kind for kind in JOB_OPERATIONS if kind is not OperationKind.SAVEPOINT]
    return Operation.objects.filter(job=job, kind__in=marked)


_KINDS: Final[Mapping[str, _Kind]] = {
    "operation": _Kind(
        _operations, "created_at", "pk", Concat("kind", Value(", ", _TEXT), "state"),
        lambda _, words: words.capitalize(),
        lambda ref, _: reverse("ui:operation", args=[ref]),
    ),
    "version": _Kind(
        lambda job: JobVersion.objects.filter(job=job), "created_at", "number", Value("", _TEXT),
        lambda ref, _: f"Version {ref} created",
        lambda *_: "#version-head",
    ),
    "savepoint": _Kind(
        lambda job: Checkpoint.objects.filter(job=job).exclude(kind=Kind.CHECKPOINT), "triggered_at", "pk",
        Concat(Cast("number", _TEXT), Value(" ", _TEXT), "status"),
        lambda _, words: f"Savepoint {words.replace('_', ' ')}",
        lambda ref, _: reverse("ui:checkpoint", args=[ref]),
    ),
    "restart": _Kind(
        _restarts, "started_at", "run_id", F("cause"),
        lambda ref, words: f"Run {ref} restarted" + (f": {words}" if words else ""),
        lambda ref, _: reverse("ui:run", args=[ref]),
    ),
    "failure": _Kind(
        lambda job: Run.objects.filter(job=job, state=RunState.FAILED.value), "ended_at", "pk",
        KeyTextTransform("message", "failure"),
        lambda ref, words: f"Run {ref} failed" + (f": {words}" if words else ""),
        lambda ref, _: reverse("ui:run", args=[ref]),
    ),
}  # fmt: skip


def marks(job: Job, window: Window) -> tuple[Mark, ...]:
    """The events of `job` in `window`, oldest first."""
    parts = []
    for name, kind in _KINDS.items():
        inside = {f"{kind.time}__gte": window.begin, f"{kind.time}__lte": window.end}
        rows = kind.rows(job).filter(**inside).order_by(f"-{kind.time}")
        annotated = rows.annotate(
            mark=Value(name, _TEXT),
            mark_at=F(kind.time),
            mark_ref=Cast(kind.ref, _TEXT),
            mark_words=Coalesce(kind.words, Value("", _TEXT)),
        )
        parts.append(annotated.values_list(*_COLUMNS)[:MAX_MARKS])
    found = sorted(parts[0].union(*parts[1:], all=True), key=lambda row: (row[1], row[0]))
    return tuple(
        Mark(name, window.percent(at), at, _KINDS[name].about(ref, words), _KINDS[name].href(ref, words))
        for name, at, ref, words in found
    )
