"""The phases of the start of a run, and their expected times by the history of its job, for pages and REST."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from statistics import median
from typing import Any, Final, NamedTuple

from django.db.models import Min, OuterRef, Q, Subquery

from console import formats
from console.checkpoints.models import Checkpoint, Status
from console.formats import Quantity
from console.jobs.models import Attempt, Run
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics

EARLIER_RUNS: Final = 10  #: runs that the expected time of a start comes from
MAX_START: Final = timedelta(hours=1)  #: records later than this are not of the start
_BAR: Final = 100.0
_LAUNCH_STEPS: Final = ("listed", "opened", "connected", "deployed")


class StartMoments(NamedTuple):
    """The moments of a start; None: not reached or not kept."""

    requested: datetime
    claimed: datetime | None  #: by a worker
    listed: datetime | None = None  #: see `runtime.run_store.LaunchTimes`, of the first attempt
    opened: datetime | None = None
    connected: datetime | None = None
    deployed: datetime | None = None
    working: datetime | None = None  #: first interval with records, or the first checkpoint if that came before
    completed: datetime | None = None  #: first checkpoint


#: Key, label, and the moments at which the phase begins and ends.
_Phase = tuple[str, str, str, str]
_QUEUE: Final[_Phase] = ("queue", "Waiting for a worker", "requested", "claimed")
_RECORDS: Final[_Phase] = ("records", "Until the first record", "deployed", "working")
_FIRST: Final[_Phase] = ("first", "Until the first checkpoint", "working", "completed")
_PHASES: Final[tuple[_Phase, ...]] = (
    _QUEUE,
    ("inputs", "Job master and inputs", "claimed", "listed"),
    ("spark", "Spark", "listed", "opened"),
    ("slots", "Slots", "opened", "connected"),
    ("restore", "Operators and restore", "connected", "deployed"),
    _RECORDS,
    _FIRST,
)
_PHASES_WITHOUT_LAUNCH: Final[tuple[_Phase, ...]] = (
    _QUEUE,
    ("deploy", "Spark, slots and restore", "claimed", "working"),
    _FIRST,
)


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


def start_moments(run: Run) -> tuple[StartMoments, list[StartMoments]]:
    """Moments of the start of `run`, and of earlier runs of its job. Two queries."""
    first_checkpoint = Checkpoint.objects.filter(run=OuterRef("pk"), status=Status.COMPLETED).order_by("number")
    first_attempt = Attempt.objects.filter(run=OuterRef("pk")).order_by("token")
    runs: list[Any] = list(
        Run.objects.filter(job=run.job_id, pk__lte=run.pk)
        .order_by("-pk")
        .annotate(
            first_checkpoint=Subquery(first_checkpoint.values("completed_at")[:1]),
            launch=Subquery(first_attempt.values("launch")[:1]),
        )
        .only("job", "created_at", "started_at")[: EARLIER_RUNS + 1]
    )
    first_hour = [Q(run_id=r.pk, at__gte=r.created_at, at__lt=r.created_at + MAX_START) for r in runs]
    flowing = Metrics.objects.filter(
        reduce(or_, first_hour), step_s=FINEST_STEP_S, operator=WHOLE_RUN, records_in__gt=0
    )
    begun = dict(flowing.values_list("run_id").annotate(Min("at")))
    moments = [_moments(r, begun.get(r.pk)) for r in runs]
    return moments[0], moments[1:]


def restart_phases(attempt: Attempt) -> tuple[StartPhase, ...]:
    """The phases of the launch of an attempt that follows another; none if its times are not recorded."""
    steps = _steps(attempt.launch)
    if not steps:
        return ()
    return start_phases(StartMoments(attempt.started_at, attempt.started_at, **steps), ())[1:]  # no queue


def _moments(run: Any, records: datetime | None) -> StartMoments:
    moments = StartMoments(run.created_at, run.started_at, completed=run.first_checkpoint, **_steps(run.launch))
    return moments._replace(working=_first_work(moments, records))


def _steps(launch: Mapping[str, int] | None) -> dict[str, datetime]:
    times_ms = launch or {}
    return {step: datetime.fromtimestamp(times_ms[step] / 1000, UTC) for step in _LAUNCH_STEPS if step in times_ms}


def _first_work(moments: StartMoments, records: datetime | None) -> datetime | None:
    """The moment from which the slots work. A run whose input comes later completes checkpoints before."""
    if moments.claimed is None:
        return None
    times = [at for at in (records, moments.completed) if at is not None and at - moments.claimed <= MAX_START]
    if not times:
        return None
    if moments.deployed is not None and min(times) == moments.completed:
        return moments.deployed  # the checkpoint waited for no record
    return max(min(times), moments.deployed or moments.claimed)


def start_phases(moments: StartMoments, earlier: Sequence[StartMoments]) -> tuple[StartPhase, ...]:
    """The phases between `moments` that the start has reached; `earlier` are those of earlier runs."""
    reached: list[tuple[_Phase, float]] = []
    for phase in _PHASES_WITHOUT_LAUNCH if moments.deployed is None else _PHASES:
        ms = _duration_ms(moments, phase)
        if ms is None:
            break
        if ms or phase is not _RECORDS:  # records are counted in intervals of 5 s
            reached.append((phase, ms))
    total_ms = sum(ms for _, ms in reached)
    phases, left = [], 0.0
    for phase, ms in reached:
        before = [took for each in earlier if (took := _duration_ms(each, phase)) is not None]
        width = ms / total_ms * _BAR if total_ms else 0.0
        expected_ms = median(before) if before else None
        phases.append(StartPhase(phase[0], phase[1], round(left, 2), round(width, 2), ms, expected_ms))
        left += width
    return tuple(phases)


def _duration_ms(moments: StartMoments, phase: _Phase) -> float | None:
    begin, end = getattr(moments, phase[2]), getattr(moments, phase[3])
    return None if begin is None or end is None else max(0.0, (end - begin).total_seconds() * 1000)
