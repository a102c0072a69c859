"""The page of a run: why it ended, its attempts, how its start went, and the snapshot that it came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from itertools import pairwise
from operator import or_
from statistics import median
from typing import Any, Final

from django.db.models import Min, OuterRef, Q, Subquery

from console import formats
from console.checkpoints.models import Checkpoint, Status, large_columns
from console.formats import Quantity
from console.jobs.code import code_of_run, other_code
from console.jobs.models import Attempt, Run
from console.metrics.models import FINEST_STEP_S, WHOLE_RUN, Metrics
from console.operations.models import Operation, OperationKind, OperationState
from console.ui.failures import NO_REASON, FailureDetail, failure_detail, with_recorded_failures
from console.ui.runlog import LogFilter, LogLine, SlotLog, log_file, log_tail
from runtime.core.job.lifecycle import RunState
from runtime.redaction import Schema

EARLIER_RUNS: Final = 10  #: runs that the expected time of a start comes from
MAX_ATTEMPTS: Final = 50  #: newest attempts on the page
MAX_START: Final = timedelta(hours=1)  #: records later than this are not of the start
_BAR: Final = 100.0
#: Request, claim by a worker, first interval with records, first completed checkpoint; None: not reached or not kept.
Moments = tuple[datetime | None, datetime | None, datetime | None, datetime | None]
_START_PHASES: Final = (("queue", "Waiting for a worker"), ("deploy", "Spark, slots and restore"),
                        ("first", "Until the first checkpoint"))  # fmt: skip
_ENDING_KINDS: Final = (OperationKind.STOP, OperationKind.DRAIN, OperationKind.CANCEL)


@dataclass(frozen=True, slots=True)
class StartPhase:
    """A phase of a start, in percent of the whole bar. `expected`: median of earlier runs of the job."""

    key: str
    label: str
    left: float
    width: float
    took: Quantity
    expected: Quantity | None


@dataclass(frozen=True, slots=True)
class RestoredOperator:
    """An operator of the snapshot or of the version, and its part in the restore."""

    name: str
    fate: str
    state_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    end: str  #: why the run ended, in a sentence; '' while it runs
    code: str  #: package and version; "" if they are not recorded
    other_code: str  #: how the code differs from that of the version, in a sentence; "" if it does not
    ended_by: Operation | None
    attempts: tuple[tuple[Attempt, FailureDetail], ...]  #: newest first
    start: tuple[StartPhase, ...]
    restored: tuple[RestoredOperator, ...]
    log: tuple[LogLine, ...] | None  #: None: this host does not have it
    log_file: str
    slots: tuple[SlotLog, ...]
    slot: SlotLog | None  #: whose log is shown; None: that of the job master
    log_host: str  #: of the worker that supervises the run; "" if none does
    wanted: LogFilter

    @property
    def has_expectation(self) -> bool:
        """Whether an earlier run gives a phase of the start an expected time."""
        return any(phase.expected for phase in self.start)


def run_view(run: Run, schema: Schema, wanted: LogFilter, logs: tuple[SlotLog, ...], slot: int | None) -> RunView:
    attempts = with_recorded_failures(Attempt.objects.filter(run=run)).select_related("restored_checkpoint")
    shown = attempts.defer("detail", *large_columns("restored_checkpoint"))[:MAX_ATTEMPTS]
    ending = Operation.objects.filter(run=run, kind__in=_ENDING_KINDS, state=OperationState.SUCCEEDED)
    ended_by = ending.select_related("requested_by").order_by("-created_at").first() if run.is_terminal else None
    chosen = next((each for each in logs if each.index == slot and each.file), None)
    file = chosen.file if chosen and chosen.file else log_file(run)
    return RunView(
        end=_end(run, ended_by, schema),
        code=str(code_of_run(run) or ""),
        other_code=other_code(run),
        ended_by=ended_by,
        attempts=tuple(
            (attempt, failure_detail(attempt.recorded, run.version, schema, attempt.reason)) for attempt in shown
        ),
        start=start_phases(*start_moments(run)),
        restored=restored_operators(run),
        log=log_tail(file, run.version.params, schema, wanted),
        log_file=str(file),
        slots=logs,
        slot=chosen,
        log_host=run.lease_owner.partition(":")[0],
        wanted=wanted,
    )


def _end(run: Run, ended_by: Operation | None, schema: Schema) -> str:
    if not run.is_terminal:
        return ""
    if run.run_state is RunState.FAILED:
        return f"The run failed: {failure_detail(run.failure, run.version, schema, NO_REASON).message}"
    if ended_by is not None:
        user = ended_by.requested_by.get_username() if ended_by.requested_by else "the system"
        savepoint = (ended_by.result or {}).get("checkpoint")
        taken = f" with savepoint {savepoint}" if savepoint else ""
        reason = f" Reason given: {ended_by.reason}" if ended_by.reason else ""
        return f"A {ended_by.kind} that {user} requested ended the run{taken}.{reason}"
    if run.run_state is RunState.FINISHED:
        return "All inputs ended, and all output is committed."
    return f"The run was {run.state}."


# ---------------------------------------------------------------- phases of a start


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
        expected = formats.duration(median(others)) if others else None
        found.append(StartPhase(key, label, round(left, 2), round(width, 2), formats.duration(ms), expected))
        left += width
    return tuple(found)


def _durations(moments: Moments) -> list[float | None]:
    return [
        None if begin is None or end is None else max(0.0, (end - begin).total_seconds() * 1000)
        for begin, end in pairwise(moments)
    ]


# ---------------------------------------------------------------- the snapshot that the run came from


def restored_operators(run: Run) -> tuple[RestoredOperator, ...]:
    """The operators of the run's version and of the restored snapshot."""
    if run.restore_checkpoint is None:
        return ()
    names = {o["uid"]: o["name"] for o in (run.version.graph or {}).get("operators", ())}
    stored: Mapping[str, Mapping[str, Any]] = {row["uid"]: row for row in run.restore_checkpoint.operators}
    found = []
    for uid, name in names.items():
        row = stored.get(uid)
        if row is None:
            found.append(RestoredOperator(name, "began with empty state: the snapshot does not have it", None))
        elif row.get("finished") == "finished":
            found.append(RestoredOperator(name, "had finished, and was not started again", None))
        else:
            found.append(RestoredOperator(name, "restored", row.get("state_bytes")))
    left_out = [row for uid, row in stored.items() if uid not in names]
    found += [RestoredOperator(row["uid"], "left out: the version does not have it", row.get("state_bytes"))
              for row in left_out]  # fmt: skip
    return tuple(found)
