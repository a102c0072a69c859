"""What pages and API show, read in few queries. Nothing here changes anything, save ending operations that are over."""

from dataclasses import dataclass

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from console.accounts.rights import operate_refusal, type_of_user
from console.checkpoints.models import Checkpoint, Kind, Status
from console.jobs.models import Attempt, Job, JobVersion, Run, VersionState
from console.operations.models import ACTIVE, Operation, OperationKind
from console.operations.restore import committed_of
from runtime.core.lifecycle import RunAct, RunState, may_start, refusal

LABELS = {
    OperationKind.START: "Start",
    OperationKind.RESTORE: "Restore from",
    OperationKind.SAVEPOINT: "Take savepoint",
    OperationKind.STOP: "Stop with savepoint",
    OperationKind.DRAIN: "Drain",
    OperationKind.CANCEL: "Cancel",
}


@dataclass(frozen=True, slots=True)
class Act:
    """A button. `reason` says why it is not enabled; empty when it is."""

    act: OperationKind
    label: str
    enabled: bool
    reason: str


@dataclass(frozen=True, slots=True)
class JobRow:
    """A line of the job list."""

    job: Job
    run: Run | None
    checkpoint: Checkpoint | None  #: the newest completed one
    active: Operation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Everything that the page of a job shows."""

    job: Job
    run: Run | None
    version: JobVersion | None  #: that of the run, or else the newest
    newest_version: JobVersion | None
    acts: tuple[Act, ...]
    start_repeats: bool  #: a start from empty state would write committed output again
    active: tuple[Operation, ...]
    operations: tuple[Operation, ...]
    checkpoints: tuple[Checkpoint, ...]
    runs: tuple[Run, ...]
    attempts: tuple[Attempt, ...]  #: of the latest run


def job_list(search: str = "") -> list[JobRow]:
    """Every job with its latest run, newest completed checkpoint and active operation, in five queries at most."""
    newest_run = Run.objects.filter(job=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    newest_checkpoint = (
        Checkpoint.objects.filter(job=OuterRef("pk"), status=Status.COMPLETED).order_by("-number").values("pk")[:1]
    )
    jobs = Job.objects.annotate(run_pk=Subquery(newest_run), checkpoint_pk=Subquery(newest_checkpoint))
    if search:
        jobs = jobs.filter(Q(name__icontains=search) | Q(pipeline__icontains=search) | Q(description__icontains=search))
    found = list(jobs)
    runs = Run.objects.select_related("version").in_bulk([job.run_pk for job in found if job.run_pk])
    checkpoints = Checkpoint.objects.in_bulk([job.checkpoint_pk for job in found if job.checkpoint_pk])
    active = {row.job_id: row for row in Operation.objects.filter(state__in=ACTIVE).order_by("created_at")}
    return [
        JobRow(job, runs.get(job.run_pk or 0), checkpoints.get(job.checkpoint_pk or 0), active.get(job.pk))
        for job in found
    ]


def job_page(job: Job, user: type_of_user, *, rows: int = 20) -> JobPage:
    """The page of one job. Lists hold the newest `rows` entries."""
    run = latest_run(job)
    newest = job.versions.order_by("-number").first()
    operations = tuple(operations_of(job)[:rows])
    return JobPage(
        job=job,
        run=run,
        version=run.version if run else newest,
        newest_version=newest,
        acts=acts(job, run, user),
        start_repeats=committed_of(job.pk) is not None,
        active=tuple(row for row in operations if row.is_active),
        operations=operations,
        checkpoints=tuple(checkpoint_table(job)[:rows]),
        runs=tuple(runs_of(job)[:rows]),
        attempts=tuple(Attempt.objects.filter(run=run)[:rows]) if run else (),
    )


def latest_run(job: Job) -> Run | None:
    return runs_of(job).first()


def runs_of(job: Job) -> QuerySet[Run]:
    """The runs of a job, newest first, with the number of their attempts as `attempt_count`."""
    related = Run.objects.filter(job=job).select_related("version", "restore_checkpoint", "created_by")
    return related.annotate(attempt_count=Count("attempts")).order_by("-pk")


def operations_of(job: Job) -> QuerySet[Operation]:
    """The operations of a job, newest first."""
    return Operation.objects.filter(job=job).select_related("requested_by", "run").order_by("-created_at", "-pk")


def checkpoint_table(job: Job, run: Run | None = None) -> QuerySet[Checkpoint]:
    """The checkpoints of a job, or of one of its runs, newest first."""
    found = Checkpoint.objects.filter(job=job).select_related("reviewer")
    return (found if run is None else found.filter(run=run)).order_by("-number")


def restorable(job: Job) -> QuerySet[Checkpoint]:
    """What a restore may choose from, newest first."""
    return checkpoint_table(job).filter(status=Status.COMPLETED, discarded_at=None)


def savepoints(job: Job) -> QuerySet[Checkpoint]:
    """What people asked for: savepoints, stops and drains, newest first."""
    return checkpoint_table(job).exclude(kind=Kind.CHECKPOINT)


def acts(job: Job, run: Run | None, user: type_of_user) -> tuple[Act, ...]:
    """Every act, in the order of the buttons, with the reason where it is not possible now."""
    forbidden = operate_refusal(user)
    return tuple(_act(kind, forbidden or _reason(kind, job, run)) for kind in OperationKind)


def _act(kind: OperationKind, reason: str | None) -> Act:
    return Act(kind, LABELS[kind], reason is None, reason or "")


def _reason(kind: OperationKind, job: Job, run: Run | None) -> str | None:
    if kind in (OperationKind.START, OperationKind.RESTORE):
        return _start_reason(kind, job, run)
    if run is None:
        return "The job has never run."
    if reason := refusal(run.run_state, RunAct(kind)):
        return reason
    return _already_asked(kind, run)


def _start_reason(kind: OperationKind, job: Job, run: Run | None) -> str | None:
    if run is not None and not may_start(RunState(run.state)):
        return f"Run {run.pk} is {run.state}; a job has one run at a time."
    if not JobVersion.objects.filter(job=job, state=VersionState.READY).exists():
        return "The job has no version that is ready."
    if kind is OperationKind.RESTORE and not restorable(job).exists():
        return "The job has no completed checkpoint."
    return None


def _already_asked(kind: OperationKind, run: Run) -> str | None:
    """The partial unique indexes, in words: one stop or drain, one cancel at a time."""
    ends = {
        OperationKind.STOP: ["stop", "drain"],
        OperationKind.DRAIN: ["stop", "drain"],
        OperationKind.CANCEL: ["cancel"],
    }
    clash = Operation.objects.filter(run=run, kind__in=ends.get(kind, []), state__in=ACTIVE).first()
    return f"A {clash.kind} is {clash.state} already." if clash else None
