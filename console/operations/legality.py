"""Decides which operations are legal now, and why others are refused, for the buttons, the API and the services.

A refusal is a `Conflict`: its `detail` appears beside a disabled button, and its `code` is for programs. Run states
follow `runtime.core.job.lifecycle`, as in the job master. `console.operations.restore` decides whether a checkpoint
fits a version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from django.db.models import Exists, Q

from console.accounts.refusals import Conflict, Refused
from console.accounts.rights import AnyUser, operate_refusal
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Kind, ReviewState, Status
from console.checkpoints.selectors import restorable
from console.checkpoints.timed_reads import read_in_time
from console.jobs.models import Job, Run
from console.jobs.services import archived_conflict, ready_versions
from console.operations.maintenance import maintenance_conflict, shown_maintenance
from console.operations.models import (
    ACTIVE_STATES,
    JOB_OPERATIONS,
    NEW_RUN_KINDS,
    REVIEW_OPERATIONS,
    SUCCESSION_KINDS,
    Operation,
    OperationKind,
)
from runtime.core.job.lifecycle import TERMINAL_STATES, RunAct, may_start, refusal

NO_READY_VERSION = "The job has no version that is ready"
#: By operation: the operations that must not be active on the run already, as the partial unique indexes enforce.
_RIVALS: Mapping[RunAct, tuple[RunAct, ...]] = {
    RunAct.STOP: (RunAct.STOP, RunAct.DRAIN),
    RunAct.DRAIN: (RunAct.STOP, RunAct.DRAIN),
    RunAct.CANCEL: (RunAct.CANCEL,),
}
_READING_KINDS = (OperationKind.COPY, OperationKind.VERIFY)  #: operations that read the files of a snapshot


@dataclass(frozen=True, slots=True)
class AllowedOperation:
    """An operation on a job or checkpoint. `reason`: why the operation is not possible now; "" if it is possible."""

    act: OperationKind
    reason: str

    @property
    def enabled(self) -> bool:
        return not self.reason


def allowed_operations(
    job: Job, run: Run | None, user: AnyUser, active: Sequence[Operation] | None = None
) -> tuple[AllowedOperation, ...]:
    """Every operation on a job, in the order of the buttons. `run` is the latest run.

    `active`: the active operations on the job; read if they are not given.
    """
    ending = _operations_on(run, active)
    missing = _MissingForNewRun(job)
    return tuple(
        AllowedOperation(kind, request_refusal(kind, user) or _sentence(_job_conflict(kind, run, ending, missing)))
        for kind in JOB_OPERATIONS
    )


def allowed_operation(
    kind: OperationKind, job: Job, run: Run | None, user: AnyUser, active: Sequence[Operation] | None = None
) -> AllowedOperation:
    """An operation on a job. `run` and `active`: as in `allowed_operations`."""
    found = _job_conflict(kind, run, _operations_on(run, active), _MissingForNewRun(job))
    return AllowedOperation(kind, request_refusal(kind, user) or _sentence(found))


def allowed_discard(checkpoint: Checkpoint, user: AnyUser) -> AllowedOperation:
    try:
        reason = request_refusal(OperationKind.DISCARD, user) or _sentence(discard_conflict(checkpoint))
    except Refused as refused:
        reason = refused.detail
    return AllowedOperation(OperationKind.DISCARD, reason)


def request_refusal(kind: OperationKind, user: AnyUser) -> str:
    """Why the user may not request operations of this kind now, on any job."""
    refused = operate_refusal(user, is_review=kind in REVIEW_OPERATIONS)
    return refused or _sentence(maintenance_conflict(kind, shown_maintenance()))


def start_conflict(run: Run | None) -> Conflict | None:
    """Why a job cannot be started or restored after `run`, its latest run; None if it can be."""
    if run is None or may_start(run.run_state):
        return None
    return Conflict("run-active", f"Run {run.pk} is {run.state}; a job has one run at a time.")


def ending_operations(run: Run | None) -> tuple[Operation, ...]:
    """The active operations that end `run`."""
    return tuple(Operation.objects.filter(run=run, kind__in=_RIVALS, state__in=ACTIVE_STATES)) if run else ()


def _operations_on(run: Run | None, active: Sequence[Operation] | None) -> Sequence[Operation]:
    """The operations of `active` on `run`; those that end it are read if `active` is not given."""
    return ending_operations(run) if active is None else [row for row in active if run and row.run_id == run.pk]


def run_conflict(run: Run | None, act: RunAct, ending: Sequence[Operation]) -> Conflict | None:
    """Why `act` is not possible on `run`, the latest run of a job; None if it is possible.

    `ending`: the active operations that end the run.
    """
    if run is None:
        return Conflict("never-run", "The job has never run.")
    if reason := refusal(run.run_state, act, batch=run.version.is_batch):
        return Conflict("illegal-state", reason)
    rival = next((operation for operation in ending if operation.kind in _RIVALS.get(act, ())), None)
    return Conflict("conflict", f"A {rival.kind} is already {rival.state}.") if rival else None


def discard_conflict(checkpoint: Checkpoint) -> Conflict | None:
    """Why a checkpoint cannot be discarded; None if it can be. Reads the manifests of later checkpoints.

    Raises:
        Refused: the storage cannot be read at the moment, or does not answer in time.
    """
    return recorded_discard_conflict(checkpoint) or _cannot_discard(_checkpoint_dependency(checkpoint))


def recorded_discard_conflict(checkpoint: Checkpoint) -> Conflict | None:
    """Why a checkpoint cannot be discarded according to rows alone; None if they allow it."""
    reason = _discard_reason(checkpoint) or _run_dependency(checkpoint) or _operation_dependency(checkpoint)
    return _cannot_discard(reason)


def hold_reason(checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint that a rollback or a drill restores cannot be discarded, or chosen for another of them."""
    if checkpoint.held_by is None:
        return None
    name = str(checkpoint).capitalize()
    kind = Operation.objects.values_list("kind", flat=True).get(pk=checkpoint.held_by)
    return f"{name} is restored by a {kind} that is under way, operation {checkpoint.held_by}."


def allowed_clone(checkpoint: Checkpoint, user: AnyUser) -> AllowedOperation:
    """A clone or a drill, which leaves the job as it is."""
    reason = "" if checkpoint.is_restorable else f"{str(checkpoint).capitalize()} cannot be restored."
    return AllowedOperation(OperationKind.CLONE, request_refusal(OperationKind.CLONE, user) or reason)


def allowed_drill(checkpoint: Checkpoint, user: AnyUser) -> AllowedOperation:
    reason = allowed_clone(checkpoint, user).reason or _sentence(drill_conflict(checkpoint.job))
    return AllowedOperation(OperationKind.DRILL, reason)


def drill_conflict(job: Job) -> Conflict | None:
    """Why no restore drill of a job can begin; None if one can."""
    if Operation.objects.filter(job=job, kind=OperationKind.DRILL, state__in=ACTIVE_STATES).exists():
        return Conflict("drill-active", "Another restore drill of this job has not ended.")
    return None


def allowed_copy(checkpoint: Checkpoint, user: AnyUser) -> AllowedOperation:
    return AllowedOperation(
        OperationKind.COPY, request_refusal(OperationKind.COPY, user) or _sentence(copy_conflict(checkpoint))
    )


def copy_conflict(checkpoint: Checkpoint) -> Conflict | None:
    """Why a savepoint cannot be copied to a folder; None if it can be."""
    if checkpoint.kind != Kind.CHECKPOINT and checkpoint.is_restorable:
        return None
    detail = f"{str(checkpoint).capitalize()} is not a completed savepoint with files; only these can be copied."
    return Conflict("cannot-copy", detail, storage.CHECKPOINT_FIELD)


def allowed_verify(checkpoint: Checkpoint, user: AnyUser) -> AllowedOperation:
    reason = "" if checkpoint.is_restorable else f"{str(checkpoint).capitalize()} has no files."
    return AllowedOperation(OperationKind.VERIFY, request_refusal(OperationKind.VERIFY, user) or reason)


def allowed_pin(checkpoint: Checkpoint, user: AnyUser) -> AllowedOperation:
    """The pin of a checkpoint, or its unpin if it is pinned."""
    pins = not checkpoint.is_pinned
    kind = OperationKind.PIN if pins else OperationKind.UNPIN
    return AllowedOperation(kind, request_refusal(kind, user) or _sentence(pin_conflict(checkpoint, pins=pins)))


def pin_conflict(checkpoint: Checkpoint, *, pins: bool) -> Conflict | None:
    """Why a checkpoint cannot be pinned or unpinned; None if it can be."""
    reason = _pin_reason(checkpoint, pins=pins)
    return Conflict("cannot-pin", reason, storage.CHECKPOINT_FIELD) if reason else None


def _pin_reason(checkpoint: Checkpoint, *, pins: bool) -> str | None:
    name = str(checkpoint).capitalize()
    if checkpoint.discarded_at:
        return f"{name} is discarded: its files are deleted."
    if checkpoint.status != Status.COMPLETED:
        return f"{name} {checkpoint.outcome_words}; only a completed {checkpoint.noun} can be pinned."
    if pins == checkpoint.is_pinned:
        return f"{name} is already pinned." if pins else f"{name} is not pinned."
    return None


def _cannot_discard(reason: str | None) -> Conflict | None:
    return Conflict("cannot-discard", reason, storage.CHECKPOINT_FIELD) if reason else None


def _sentence(found: Conflict | None) -> str:
    return found.detail if found else ""


class _MissingForNewRun:
    """Rows that a job needs for a new run. A query, when an operation first needs them."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def present(self) -> Conflict | None:
        return archived_conflict(self._job)

    @cached_property
    def _found(self) -> tuple[bool, bool]:
        """Whether a version is ready, and whether a checkpoint can be restored."""
        found = Exists(ready_versions(self._job)), Exists(restorable(self._job))
        is_ready, is_restorable = Job.objects.filter(pk=self._job.pk).values_list(*found).get()
        return is_ready, is_restorable

    @property
    def version(self) -> Conflict | None:
        return None if self._found[0] else Conflict("no-ready-version", f"{NO_READY_VERSION}.")

    @property
    def checkpoint(self) -> Conflict | None:
        if self._found[1]:
            return None
        detail = "The job has no completed checkpoint; a savepoint in another folder is restored over REST."
        return Conflict("no-checkpoint", detail)


def _job_conflict(
    kind: OperationKind, run: Run | None, ending: Sequence[Operation], missing: _MissingForNewRun
) -> Conflict | None:
    if kind is OperationKind.ROLLBACK:
        unstoppable = run_conflict(run, RunAct.STOP, ending)
        in_batch = run is not None and run.version.is_batch  # it has no snapshot to go back to
        return unstoppable if in_batch else unstoppable and run_conflict(run, RunAct.CANCEL, ending)
    if kind not in NEW_RUN_KINDS:
        return run_conflict(run, RunAct.STOP if kind is OperationKind.RESCALE else RunAct(kind), ending)
    if active := start_conflict(run):
        return active
    return missing.present or missing.version or (missing.checkpoint if kind is OperationKind.RESTORE else None)


def _discard_reason(checkpoint: Checkpoint) -> str | None:
    name = str(checkpoint).capitalize()
    if checkpoint.kind == Kind.CHECKPOINT:
        return f"{name} is not a savepoint: retention discards checkpoints once newer checkpoints have completed."
    if checkpoint.status != Status.COMPLETED:
        return f"{name} {checkpoint.outcome_words}; only a completed savepoint can be discarded."
    if checkpoint.discarded_at:
        return f"{name} is already discarded."
    if checkpoint.is_pinned:
        return f"{name} is pinned. Unpin it first."
    if checkpoint.review_state == ReviewState.IN_REVIEW:
        return f"{name} is in review. End its review first."
    return hold_reason(checkpoint)


def _run_dependency(checkpoint: Checkpoint) -> str | None:
    run = Run.objects.filter(job=checkpoint.job_id).exclude(state__in=TERMINAL_STATES).order_by("-pk").first()
    if run is None:
        return None
    if run.pk == checkpoint.run_id and checkpoint.kind in (Kind.STOP, Kind.DRAIN):
        return f"Run {run.pk} is still ending with this savepoint."
    begins = run.restore_checkpoint_id == checkpoint.pk or run.restore_path == checkpoint.path
    own = Checkpoint.objects.filter(run=run, status=Status.COMPLETED, kind=Kind.CHECKPOINT, discarded_at=None)
    if begins and not own.exists():
        return f"Run {run.pk} was restored from this savepoint and has not completed a checkpoint yet."
    return None


def _operation_dependency(checkpoint: Checkpoint) -> str | None:
    """The refusal if an active operation reads the savepoint's files, or will restore the savepoint."""
    needing = Q(kind__in=_READING_KINDS, params__checkpoint=checkpoint.pk)
    needing |= Q(kind=OperationKind.COPY, part_of__result__checkpoint=checkpoint.number)
    if checkpoint.kind == Kind.STOP:
        needing |= Q(kind__in=SUCCESSION_KINDS, run=checkpoint.run_id)
    row = Operation.objects.filter(needing, job=checkpoint.job_id, state__in=ACTIVE_STATES).first()
    return f"Operation {row.pk} ({row.kind}) needs the savepoint's files until it ends." if row else None


def _checkpoint_dependency(checkpoint: Checkpoint) -> str | None:
    """The refusal if a later checkpoint may need the savepoint's files. Savepoints and earlier checkpoints never do."""
    others = Checkpoint.objects.filter(job=checkpoint.job_id, status=Status.COMPLETED, discarded_at=None)
    later = others.filter(kind=Kind.CHECKPOINT, number__gt=checkpoint.number).order_by("-number")
    for other in later.defer("operators"):
        needed = _needs_files(other, checkpoint)
        if needed is None:
            return f"{str(other).capitalize()} cannot be read and may need the savepoint's files."
        if needed:
            return f"{str(other).capitalize()} needs the savepoint's files until newer checkpoints replace it."
    return None


def _needs_files(other: Checkpoint, savepoint: Checkpoint) -> bool | None:
    """Whether `other` needs files of a savepoint; None if its manifest cannot be read."""
    key = ("files of a savepoint", other.pk, savepoint.pk)
    return read_in_time(key, partial(storage.needs_folder, other, savepoint.path))
