"""The checkpoints of a job and their statistics, read-only and in few queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from django.db.models import Count, F, Func, IntegerField, Max, Q, QuerySet, Subquery, TextField, Value, Window
from django.db.models.functions import Greatest
from django.db.models.lookups import LessThanOrEqual

from console.checkpoints.models import (
    ABORT_REASON,
    NOT_FAILURES,
    SUPERSEDED_REASONS,
    Checkpoint,
    Kind,
    Status,
    large_columns,
)
from console.jobs.attempts import attempt_number
from console.jobs.models import Attempt, Job, Run
from runtime.core.checkpoint.statistics import MAX_SUMMARIZED_CHECKPOINTS, CheckpointMeasurement, Summary, summarize
from runtime.core.job.settings import ExecutionMode
from runtime.core.snapshot.failure_reason import FailureReason

#: Checkpoints with the annotations of `restorable`.
FoundCheckpoints = QuerySet[Any]
#: Whether the last check of a checkpoint found damage. Never null, so that it can be negated.
IS_DAMAGED: Final = Q(verification__is_damaged=True, verification__is_damaged__isnull=False)


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The newest completed checkpoints of a run: of any kind, with output to commit, and to continue from."""

    newest: Checkpoint | None
    committed: Checkpoint | None
    continuable: Checkpoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of checkpoints and savepoints. `aborted` checkpoints ended with their attempt, and a newer checkpoint has
    replaced `superseded` checkpoints. `restored` is the number of attempts that were restored from a checkpoint.
    """

    in_progress: int
    completed: int
    failed: int
    aborted: int
    superseded: int
    restored: int

    @property
    def triggered(self) -> int:
        return self.in_progress + self.completed + self.failed + self.aborted + self.superseded


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failed checkpoints with the same reason. `counted`: whether they count towards `tolerable_failed_checkpoints`."""

    reason: str
    number: int
    counted: bool
    newest: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of a job, or of a run of it. The summary covers the latest completed checkpoints."""

    counts: Counts
    summary: Summary | None
    failures: tuple[Failures, ...]  #: most frequent first
    latest_completed: Checkpoint | None  #: excluding savepoints
    latest_savepoint: Checkpoint | None
    latest_failed: Checkpoint | None
    latest_restored: Attempt | None


def job_checkpoints(job: Job | int) -> QuerySet[Checkpoint]:
    """The checkpoints of a job, without the records with which runs in BATCH commit their output."""
    batch = Run.objects.filter(job=job, version__graph__mode=ExecutionMode.BATCH.value)
    return Checkpoint.objects.filter(job=job).exclude(run__in=batch)


def checkpoint_table(job: Job) -> QuerySet[Checkpoint]:
    """The checkpoints of a job, newest first, without their figures by operator."""
    return job_checkpoints(job).defer("operators").order_by("-number")


def restorable(job: Job) -> FoundCheckpoints:
    """Checkpoints that can be restored, newest first. `all_finished`: every operator in the checkpoint had finished.

    `is_damaged`: the last check found damage. A restore is possible, and warns.
    """
    rows = checkpoint_table(job).filter(status=Status.COMPLETED, discarded_at=None)
    of_all: Any = LessThanOrEqual(Greatest(_length("operators"), 1), _length("finished_operators"))
    annotated: FoundCheckpoints = rows.annotate(all_finished=of_all, is_damaged=IS_DAMAGED)
    return annotated


def continuable(job: Job) -> FoundCheckpoints:
    """Checkpoints that a run should continue from, newest first: restorable, and not every operator had finished.

    Drained savepoints are excluded: their windows fired early. So are snapshots whose last check found damaged files.
    """
    return restorable(job).filter(all_finished=False, is_damaged=False).exclude(kind=Kind.DRAIN)


def _length(column: str) -> Func:
    return Func(F(column), function="jsonb_array_length", output_field=IntegerField())


def newest_of(run: Run | None) -> Checkpoint | None:
    """The newest completed checkpoint of a run, of any kind."""
    return None if run is None else restorable(run.job).filter(run=run).first()


def run_progress(run: Run | None) -> RunProgress:
    """The newest completed checkpoints of a run. Mostly all three are one checkpoint, and the query of it is enough."""
    if run is None:
        return RunProgress(None, None, None)
    rows = restorable(run.job).filter(run=run)
    newest = rows.first()
    if newest is None:
        return RunProgress(None, None, None)
    has_output = newest.kind != Kind.SAVEPOINT
    goes_on = not newest.all_finished and not newest.is_damaged and newest.kind != Kind.DRAIN
    return RunProgress(
        newest,
        newest if has_output else rows.exclude(kind=Kind.SAVEPOINT).first(),
        newest if goes_on else continuable(run.job).filter(run=run).first(),
    )


def batch_output(run: Run) -> Checkpoint | None:
    """The record with which a run in BATCH has committed its output."""
    return Checkpoint.objects.filter(run=run, status=Status.COMPLETED).defer("operators").first()


def statistics(job: Job, run: Run | None = None) -> Statistics:
    """The statistics of `job`, or of `run` alone."""
    rows, attempts = job_checkpoints(job), Attempt.objects.filter(run__job=job)
    if run is not None:
        rows, attempts = rows.filter(run=run), attempts.filter(run=run)
    restored = attempts.exclude(restored_checkpoint=None)
    completed = rows.filter(status=Status.COMPLETED).order_by("-number")
    summed_up = summarize(_measurements(rows))  # before the counts, which then include every summarised checkpoint
    ended = _failures(rows.filter(status=Status.FAILED))
    failures = tuple(group for group in ended if group.reason not in NOT_FAILURES)
    by_kind = completed.filter(kind=Kind.CHECKPOINT), completed.exclude(kind=Kind.CHECKPOINT)
    checkpoint, savepoint = (Q(pk=Subquery(part.values("pk")[:1])) for part in by_kind)
    latest = {row.kind == Kind.CHECKPOINT: row for row in rows.filter(checkpoint | savepoint)}
    numbered: Any = restored.annotate(attempt_number=attempt_number(), total=Window(Count("pk")))
    restore = (
        numbered.select_related("restored_checkpoint")
        .defer(*large_columns("restored_checkpoint"))
        .order_by("-token")
        .first()
    )
    return Statistics(
        counts=_counts(rows, ended, restore.total if restore else 0),
        summary=summed_up,
        failures=failures,
        latest_completed=latest.get(True),
        latest_savepoint=latest.get(False),
        latest_failed=max((group.newest for group in failures), key=lambda row: row.number, default=None),
        latest_restored=restore,
    )


def previous_completed(checkpoint: Checkpoint) -> int | None:
    """The number of the job's newest completed checkpoint before `checkpoint`, which may be discarded."""
    older = Checkpoint.objects.filter(job=checkpoint.job_id, status=Status.COMPLETED, number__lt=checkpoint.number)
    return older.order_by("-number").values_list("number", flat=True).first()


def newest_kept(job: Job | int) -> QuerySet[Checkpoint]:
    """The checkpoints of a job that can be restored, newest first, with their figures by operator."""
    return job_checkpoints(job).filter(status=Status.COMPLETED, discarded_at=None).order_by("-number")


def _counts(rows: QuerySet[Checkpoint], ended: Sequence[Failures], restored: int) -> Counts:
    # A group by the status takes twice as long: Postgres looks up the group of each row.
    numbers = rows.aggregate(**{status: Count("status", filter=Q(status=status)) for status in Status})
    aborted = sum(group.number for group in ended if group.reason == ABORT_REASON)
    superseded = sum(group.number for group in ended if group.reason in SUPERSEDED_REASONS)
    return Counts(
        in_progress=numbers[Status.IN_PROGRESS],
        completed=numbers[Status.COMPLETED],
        failed=max(numbers[Status.FAILED] - aborted - superseded, 0),
        aborted=aborted,
        superseded=superseded,
        restored=restored,
    )


def _measurements(rows: QuerySet[Checkpoint]) -> list[CheckpointMeasurement]:
    """Measurements of the latest completed checkpoints. Postgres extracts the alignment times from the JSON column."""
    waits: Any = Func(
        F("operators"), Value("$[*].max_alignment_ms"), function="jsonb_path_query_array", output_field=TextField()
    )
    newest = rows.filter(status=Status.COMPLETED).exclude(duration_ms=None).annotate(waits=waits)
    columns: Any = newest.order_by("-number").values_list("duration_ms", "size_bytes", "written_bytes", "waits")
    return [
        CheckpointMeasurement(
            duration_ms=took,
            state_bytes=size,
            written_bytes=written,
            alignment_ms=max(msgspec.json.decode(waited), default=0),  # up to a thousand: `json` is slower
        )
        for took, size, written, waited in columns[:MAX_SUMMARIZED_CHECKPOINTS]
    ]


def _failures(failed: QuerySet[Checkpoint]) -> tuple[Failures, ...]:
    by_reason = failed.order_by().values_list("reason").annotate(Count("pk"), Max("pk"))
    newest = failed.in_bulk([pk for _, _, pk in by_reason])
    groups = [
        Failures(reason=reason, number=number, counted=_is_counted(reason), newest=newest[pk])
        for reason, number, pk in by_reason
    ]
    return tuple(sorted(groups, key=lambda failures: (-failures.number, failures.reason)))


def _is_counted(reason: str) -> bool:
    """Whether failures with `reason` count. Failures with a reason that this console does not know do not count."""
    return reason in list(FailureReason) and FailureReason(reason).is_counted
