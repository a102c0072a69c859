"""The phases of the start of a run, and their expected times by the history of its job, for pages and REST."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from itertools import pairwise
from operator import or_
from statistics import median
from typing import Any, Final

from django.db.models import Min, OuterRef, Q, Subquery

from console import formats
from console.checkpoints.models import Checkpoint, Status
from console.formats import Quantity
from console.jobs.models import Run
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics

EARLIER_RUNS: Final = 10  #: runs that the expected time of a start comes from
MAX_START: Final = timedelta(hours=1)  #: records later than this are not of the start
_BAR: Final = 100.0
#: Request, claim by a worker, first interval with records, first completed checkpoint; None: not reached or not kept.
Moments = tuple[datetime | None, datetime | None, datetime | None, datetime | None]
_START_PHASES: Final = (("queue", "Waiting for a worker"), ("deploy", "Spark, slots and restore"),
                        ("first", "Until the first checkpoint"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class StartPhase:
    """A phase of a start, in percent of the whole bar. `expected_ms`: median of earlier runs."""

    key: str
    label: str
    left: float
    width: float
    took_ms: float
    expected_ms: float | None

    @property
    def took(self) -> Quantity:
        return formats.duration(self.took_ms)

    @property
    def expected(self) -> Quantity | None:
        return None if self.expected_ms is None else formats.duration(self.expected_ms)


def start_moments(run: Run) -> tuple[Moments, list[Moments]]:
    """Moments of the start of `run`, and of earlier runs of its job. Two queries."""
    first_checkpoint = Checkpoint.objects.filter(run=OuterRef("pk"), status=Status.COMPLETED).order_by("number")
    runs: list[Any] = list(
        Run.objects.filter(job=run.job_id, pk__lte=run.pk)
        .order_by("-pk")
        .annotate(first_checkpoint=Subquery(first_checkpoint.values("completed_at")[:1]))
        .only("job", "created_at", "started_at")[: EARLIER_RUNS + 1]
    )
    first_hour = [Q(run_id=r.pk, at__gte=r.created_at, at__lt=r.created_at + MAX_START) for r in runs]
    flowing = Metrics.objects.filter(
        reduce(or_, first_hour), step_s=FINEST_STEP_S, operator=WHOLE_RUN, records_in__gt=0
    )
    begun = dict(flowing.values_list("run_id").annotate(Min("at")))
    found = [
        (r.created_at, r.started_at, _first_work(begun.get(r.pk), r.started_at, r.first_checkpoint), r.first_checkpoint)
        for r in runs
    ]
    return found[0], found[1:]


def _first_work(records: datetime | None, started: datetime | None, checkpoint: datetime | None) -> datetime | None:
    """The moment from which the slots work. A run whose input comes later completes checkpoints before."""
    if started is None:
        return None
    found = [at for at in (records, checkpoint) if at is not None and at - started <= MAX_START]
    return max(min(found), started) if found else None


def start_phases(moments: Moments, earlier: Sequence[Moments]) -> tuple[StartPhase, ...]:
    """The phases between `moments` that the start has reached; `earlier` are those of earlier runs."""
    lasted = _durations(moments)
    whole = sum(ms for ms in lasted if ms is not None)
    before = [_durations(each) for each in earlier]
    found, left = [], 0.0
    for at, ((key, label), ms) in enumerate(zip(_START_PHASES, lasted, strict=True)):
        if ms is None:
            break
        others = [took for each in before if (took := each[at]) is not None]
        width = ms / whole * _BAR if whole else 0.0
        expected_ms = median(others) if others else None
        found.append(StartPhase(key, label, round(left, 2), round(width, 2), ms, expected_ms))
        left += width
    return tuple(found)


def _durations(moments: Moments) -> list[float | None]:
    return [
        None if begin is None or end is None else max(0.0, (end - begin).total_seconds() * 1000)
        for begin, end in pairwise(moments)
    ]
