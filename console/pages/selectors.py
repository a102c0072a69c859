"""Read models of pages and API, in few queries. Read-only."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.db.models import (
    BigIntegerField,
    Case,
    Count,
    DateTimeField,
    Exists,
    F,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Coalesce, Greatest, JSONObject
from django.shortcuts import get_object_or_404

from console.checkpoints.models import Checkpoint, Status, large_columns
from console.checkpoints.restart_times import restarts_ms
from console.checkpoints.selectors import batch_output, newest_kept
from console.jobs.models import Attempt, Job, JobVersion, Pipeline, Run, StandingStage
from console.metrics.recent import newest_lag, newest_rate
from console.operations.models import ACTIVE_STATES, Operation
from console.operations.operation_type import JobOperation
from console.operations.registry import types_of
from console.operations.restores.effects import committed_checkpoints
from console.operations.selectors import with_runs
from console.pages.lines import AttemptLine, RunLine, attempt_lines, run_lines
from console.pages.restore_points import RestorePoint, oldest_restorable, read_restore_point
from console.pages.restore_proof import RestoreProof, latest_proof, read_proof
from console.runs.selectors import FoundJobs, with_latest_run
from runtime.access.redaction import Schema
from runtime.core.job.lifecycle import FLOWING_STATES, TERMINAL_STATES, RunState

_LIST_RUN_COLUMNS = (
    "state", "token", "parallelism", "created_at", "started_at", "ended_at", "live_at", "version__number",
)  # fmt: skip
_LIST_CHECKPOINT_COLUMNS = ("kind", "number", "triggered_at", "duration_ms")
PAGE_ROWS = 20  #: newest entries of each list on the page of a job


@dataclass(frozen=True, slots=True)
class JobRow:
    job: Job
    run: Run | None
    checkpoint: Checkpoint | None  #: newest completed checkpoint
    active: Operation | None
    version: int | None = None  #: number of the version of the run, or of the newest version before the first run
    parallelism: int | None = None  #: of the run, or of that version
    failed_at: datetime | None = None  #: end of the newest attempt of the run that ended
    restarts: int = 0  #: of the run, over all of its job masters
    failure_code: str | None = None  #: of a run that failed
    attempts: tuple[AttemptLine, ...] = ()  #: of a run in RUNNING: the newest two, newest first
    lag_ms: int | None = None  #: see `console.metrics.lag`; None unless records flow


class NewestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures by operator of the newest checkpoint that can be restored."""

    pk: int
    operators: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    job: Job
    run: Run | None
    version: JobVersion | None  #: the run's version, else the newest
    newest_version: JobVersion | None
    schema: Schema  #: of the pipeline's parameters
    start_repeats: bool  #: a start from empty state would repeat committed output
    active: tuple[Operation, ...]
    operations: tuple[Operation, ...]
    runs: tuple[RunLine, ...]  #: newest first
    attempts: tuple[AttemptLine, ...]  #: of the latest run, newest first
    stages: tuple[StandingStage, ...]  #: of the latest run
    output: Checkpoint | None  #: commit record of a run in BATCH
    proof: RestoreProof | None  #: the restore drill that ended last
    oldest_point: RestorePoint | None
    newest_figures: NewestFigures | None
    restarts_ms: Sequence[float]  #: times of the newest restarts

    @property
    def restarts(self) -> int:
        """Restarts of the latest run, over all of its job masters. A live report has only those of the present one."""
        return max(0, self.runs[0].attempt_count - 1) if self.runs else 0


def find_jobs(search: str = "", *, tag: str = "", owner: str = "", archived: bool = False) -> FoundJobs:
    """Jobs by name with their latest run, annotated with `checkpoint_pk`, the newest completed checkpoint.

    `first_version` has number and parallelism of the newest version of a job that never ran; else it is None.

    `search`: a part of the name, pipeline, description or owner, or a tag. `archived`: archived jobs only, else all
    others.
    """
    newest_checkpoint = Checkpoint.objects.filter(job=OuterRef("pk"), status=Status.COMPLETED).order_by("-number")
    version = _newest_version(JSONObject(number=F("number"), parallelism=F("parallelism")))
    jobs: FoundJobs = with_latest_run().annotate(
        checkpoint_pk=Subquery(newest_checkpoint.values("pk")[:1]), first_version=Case(When(run_pk=None, then=version))
    )
    jobs = jobs.filter(archived_at__isnull=not archived)
    if search:
        texts = Q(name__icontains=search) | Q(pipeline__icontains=search) | Q(description__icontains=search)
        jobs = jobs.filter(texts | Q(owner__icontains=search) | Q(tags__contains=[search.lower()]))
    if tag:
        jobs = jobs.filter(tags__contains=[tag])
    if owner:
        jobs = jobs.filter(owner=owner)
    return jobs.order_by("name")


# ---------------------------------------------------------------- orders of the list of jobs, never null


def parallelism_order() -> Coalesce:
    """The parallelism of the latest run, or of the newest version of a job that never ran."""
    return Coalesce(F("latest_run__parallelism"), _newest_version(F("parallelism")), Value(0))


def restarts_order() -> Greatest:
    return _restarts("latest_run")


def checkpoint_order() -> Coalesce:
    """The time of the newest completed checkpoint, for jobs with `checkpoint_pk`."""
    newest = Checkpoint.objects.filter(pk=OuterRef("checkpoint_pk")).values("triggered_at")
    return Coalesce(Subquery(newest), Value(datetime(1970, 1, 1, tzinfo=UTC), DateTimeField()))


def _newest_version(value: Any) -> Subquery:
    """A value of the newest version of a job."""
    return Subquery(JobVersion.objects.filter(job=OuterRef("pk")).order_by("-number").values(found=value)[:1])


def rate_order(now: datetime, records: str) -> Case:
    """Records per second of the latest run in the newest minute. The case spares many ended jobs the subquery."""
    newest = Subquery(newest_rate(OuterRef("latest_run"), now, records))
    return Case(When(run_state__in=TERMINAL_STATES, then=0.0), default=Coalesce(newest, 0.0))


def lag_order(now: datetime) -> Case:
    """The lag in ms of the latest run while its records flow; below 0 if it is unknown."""
    newest, unknown = Subquery(newest_lag(OuterRef("latest_run"), now)), Value(-1, BigIntegerField())
    return Case(When(run_state__in=FLOWING_STATES, then=Coalesce(newest, unknown)), default=unknown)


def with_run_states(jobs: FoundJobs, states: Collection[str | None]) -> FoundJobs:
    """The jobs whose latest run has a state in `states`; None selects jobs that never ran."""
    condition = Q(run_state__in=[state for state in states if state is not None])
    return jobs.filter(condition | Q(run_state=None) if None in states else condition)


def count_by(jobs: FoundJobs, *annotations: str) -> dict[tuple[Any, ...], int]:
    """Number of jobs by the values of some annotations."""
    counted = jobs.order_by().values_list(*annotations).annotate(Count("pk"))
    return {tuple(values): number for *values, number in counted}


def job_rows(jobs: Sequence[Any], now: datetime) -> list[JobRow]:
    """The list rows of `jobs`, read in three queries with only the columns that the list shows.

    Most runs have ended: reports, attempts, lags and whole graphs are read for the others only.
    """
    ended = Attempt.objects.filter(run=OuterRef("pk")).order_by().values("run").annotate(at=Max("ended_at"))
    listed = Run.objects.select_related("version").only(*_LIST_RUN_COLUMNS)
    mode = JSONObject(mode=F("version__graph__mode"))
    facts: dict[str, Any] = {
        "failed_at": Subquery(ended.values("at")), "restarts": _restarts("pk"),
        "failure_code": KeyTextTransform("code", "failure"),
        "report": Case(When(ended_at=None, then=F("live"))),
        "attempt_lines": Case(When(state=RunState.RUNNING, then=attempt_lines(2))),
        "lag_ms": Case(When(state__in=FLOWING_STATES, then=Subquery(newest_lag(OuterRef("pk"), now)))),
        "graph": Case(When(ended_at=None, then=F("version__graph")), default=mode),
    }  # fmt: skip
    runs: Mapping[int, Any] = listed.annotate(**facts).in_bulk([job.run_pk for job in jobs])
    for run in runs.values():
        run.live, run.version.graph = run.report, run.graph  # or the deferred columns would take a query
    checkpoints = Checkpoint.objects.only(*_LIST_CHECKPOINT_COLUMNS).in_bulk([job.checkpoint_pk for job in jobs])
    kinds = [each.kind for each in types_of(JobOperation)]
    of_runs = Operation.objects.filter(job__in=jobs, state__in=ACTIVE_STATES, kind__in=kinds, part_of=None)
    operations = of_runs.order_by("created_at", "pk")
    active = {row.job_id: row for row in operations.only("job", "part_of", "kind", "state", "created_at")}
    return [
        JobRow(
            job,
            run := runs.get(job.run_pk),
            checkpoints.get(job.checkpoint_pk),
            active.get(job.pk),
            run.version.number if run else (job.first_version or {}).get("number"),
            run.parallelism if run else (job.first_version or {}).get("parallelism"),
            run.failed_at if run else None,
            run.restarts if run else 0,
            run.failure_code if run else None,
            msgspec.convert(run.attempt_lines, tuple[AttemptLine, ...]) if run and run.attempt_lines else (),
            run.lag_ms if run else None,
        )
        for job in jobs
    ]


def job_page(pk: int) -> JobPage:
    """The data of a job's page. Lists hold the newest `PAGE_ROWS` entries.

    Raises:
        Http404: there is no such job.
    """
    related = Run.objects.filter(job=pk).select_related("job__health", "version__created_by").order_by("-pk")
    lists = {"run_lines": run_lines(runs_of(pk), PAGE_ROWS), "attempt_lines": attempt_lines(PAGE_ROWS)}
    run: Any = related.annotate(**_page_facts(pk, "job__"), **lists).first()
    facts: Any = run or get_object_or_404(Job.objects.annotate(**_page_facts(pk)), pk=pk)
    job = run.job if run else facts
    operations = _newest_and_active(job)
    active = tuple(row for row in operations if row.is_active)
    is_newest = run is not None and run.version_id == facts.newest_version_pk
    newest = run.version if is_newest else job.versions.filter(pk=facts.newest_version_pk).first()
    version = run.version if run else newest
    return JobPage(
        job=job,
        run=run,
        version=version,
        newest_version=newest,
        schema=facts.parameter_schema or {},
        start_repeats=facts.start_repeats,
        active=active,
        operations=operations[:PAGE_ROWS],
        runs=msgspec.convert(run.run_lines, tuple[RunLine, ...]) if run else (),
        attempts=msgspec.convert(run.attempt_lines, tuple[AttemptLine, ...]) if run else (),
        stages=tuple(StandingStage.objects.filter(run=run)) if run and run.version.has_standing_stages else (),
        output=batch_output(run) if run and run.version.is_batch else None,
        proof=read_proof(facts.latest_proof),
        oldest_point=read_restore_point(facts.oldest_point),
        newest_figures=facts.newest_figures and msgspec.convert(facts.newest_figures, NewestFigures),
        restarts_ms=facts.restarts or (),
    )


def _newest_and_active(job: Job) -> tuple[Operation, ...]:
    """The newest operations of a job, then any older active ones, newest first."""
    operations = Operation.objects.filter(job=job)
    newest = operations.order_by("-created_at", "-pk").values("pk")[:PAGE_ROWS]
    return tuple(with_runs(operations.filter(Q(pk__in=newest) | Q(state__in=ACTIVE_STATES))))


def _page_facts(pk: int, job: str = "") -> dict[str, Any]:
    """Facts for the page of the job `pk`, as annotations of the job, or with the prefix `job__` of a run."""
    figures = newest_kept(pk).values(found=JSONObject(pk=F("pk"), operators=F("operators")))
    versions = JobVersion.objects.filter(job=OuterRef(f"{job}pk")).order_by("-number")
    return {
        "newest_version_pk": Subquery(versions.values("pk")[:1]),
        "parameter_schema": Subquery(Pipeline.objects.filter(pk=OuterRef(f"{job}pipeline")).values("schema")),
        "start_repeats": Exists(committed_checkpoints(OuterRef(f"{job}pk"))),
        "latest_proof": latest_proof(f"{job}pk"),
        "oldest_point": oldest_restorable(job),
        "newest_figures": Subquery(figures[:1]),
        "restarts": restarts_ms(pk),
    }


def runs_of(job: Job | int) -> QuerySet[Run]:
    """The runs of a job, newest first, with the number of their attempts as `attempt_count`."""
    related = Run.objects.filter(job=job).select_related("version", "restore_checkpoint", "created_by")
    counted = related.annotate(attempt_count=_attempt_count("pk"))  # a join would count those of all runs
    return counted.defer(*large_columns("restore_checkpoint")).order_by("-pk")


def _attempt_count(run: str) -> Coalesce:
    """The number of attempts of the run whose key is in the column `run`: an annotation, 0 without attempts."""
    attempts = Attempt.objects.filter(run=OuterRef(run)).order_by().values("run")
    counted = attempts.values(number=Count("pk") + Max("run__removed_attempts"))
    return Coalesce(Subquery(counted), 0)


def _restarts(run: str) -> Greatest:
    """The number of attempts without the first, as `_attempt_count`."""
    return Greatest(_attempt_count(run) - 1, Value(0))


# ---------------------------------------------------------------- rows behind a page, for its revision


def rows_of_list(jobs: Sequence[Any]) -> list[tuple[QuerySet[Any], int]]:
    """Queries for the rows behind a list of `jobs` but their runs, each with its maximum number of rows."""
    return [
        (Checkpoint.objects.filter(pk__in=[job.checkpoint_pk for job in jobs]).order_by("pk"), len(jobs)),
        (Operation.objects.filter(job__in=jobs, state__in=ACTIVE_STATES).order_by("pk"), 4 * len(jobs)),
    ]


def rows_of_selection(jobs: Sequence[int]) -> list[tuple[QuerySet[Any], int]]:
    """Queries for the rows behind an act on the jobs with these ids, each with its maximum number of rows."""
    selected = Job.objects.filter(pk__in=jobs)
    return [
        (selected.order_by("pk"), len(jobs)),
        (Run.objects.filter(pk__in=selected.values("latest_run")).order_by("pk"), len(jobs)),
        (Operation.objects.filter(job__in=jobs, state__in=ACTIVE_STATES).order_by("pk"), 4 * len(jobs)),
    ]


def rows_of_confirmation(job: Job) -> list[tuple[QuerySet[Any], int]]:
    """Queries for the rows behind a confirmation page of a job, each with its maximum number of rows."""
    return [
        (Run.objects.filter(job=job).order_by("-pk"), 1),
        (Operation.objects.filter(job=job).order_by("-created_at", "-pk"), 5),
        (Checkpoint.objects.filter(job=job).order_by("-number"), 5),
    ]


def rows_of_snapshot_confirmation(checkpoint: Checkpoint) -> list[tuple[QuerySet[Any], int]]:
    """As `rows_of_confirmation`, for a page that asks about a snapshot."""
    return [*rows_of_confirmation(checkpoint.job), (Checkpoint.objects.filter(pk=checkpoint.pk), 1)]


def rows_of_restore(job: Job, checkpoint: int | None) -> list[tuple[QuerySet[Any], int]]:
    """As `rows_of_confirmation`, for a page that shows the effects of restoring the chosen checkpoint."""
    return [
        *rows_of_confirmation(job),
        (Checkpoint.objects.filter(pk=checkpoint or 0), 1),
        (Job.objects.filter(pk=job.pk), 1),
        (JobVersion.objects.filter(job=job).order_by("-number"), 5),
    ]
