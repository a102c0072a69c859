"""Discarding a savepoint: check dependencies, record the discard, then delete the files.

Retention never discards savepoints, so only this operation frees their storage. Checkpoints of a
run restored from a savepoint may need the savepoint's files until compaction has replaced these files.
"""

from functools import partial

import structlog
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce, Now

from console import formats
from console.accounts.refusals import Conflict
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Kind, ReviewState, Status
from console.checkpoints.timed_reads import read_in_time
from console.jobs.models import Job, Run
from console.jobs.services import lock_job
from console.operations.holds import hold_reason
from console.operations.kinds.job.succession import Succession
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from console.operations.operation_type import PlainCommand, SnapshotOperation, checkpoint_of
from console.operations.params import CheckpointParams
from console.operations.preview import Confirmation
from console.operations.registry import operation_types, types_of
from runtime.core.job.lifecycle import TERMINAL_STATES
from runtime.errors import EnvironmentFailure

log = structlog.get_logger(__name__)


class Discard(SnapshotOperation):
    """Marks a savepoint as discarded, so that it cannot be restored; a worker of the console deletes its files."""

    kind = OperationKind.DISCARD
    params = CheckpointParams
    blocked_by_maintenance = True
    message = "The savepoint is discarded; its files are being deleted."
    command = PlainCommand(
        help="Deletes the files of savepoint NUMBER of JOB.",
        question="The files of savepoint {number} of {job} are deleted. Discard it?",
    )
    files_due = Q()

    def conflict(self, checkpoint: Checkpoint) -> Conflict | None:
        """As `SnapshotOperation.conflict`. Reads the manifests of later checkpoints, in limited time."""
        return _recorded_conflict(checkpoint) or _conflict(_checkpoint_dependency(checkpoint))

    def confirmation(self, checkpoint: Checkpoint) -> Confirmation:
        size = formats.size(checkpoint.size_bytes)
        return Confirmation(
            title=f"Discard {checkpoint}",
            verb="Discard savepoint",
            sentences=(
                f"The files of {checkpoint} ({size}) are deleted. It can no longer be restored.",
                "Its row and its statistics stay.",
            ),
            instead="To keep a copy, copy it to a folder first: a savepoint is self-contained.",
            dangerous=True,
        )

    def accept(self, row: Operation, params: CheckpointParams) -> Operation:
        """As `OperationType.accept`.

        Raises:
            Conflict: the savepoint is not completed, is already discarded, is pinned or in review, or a run, a
                checkpoint or an operation depends on it.
        """
        newest_run = _newest_run(row.job)
        if conflict := self.conflict(checkpoint_of(row.job, params.checkpoint)):
            raise conflict  # manifests were read: the row of the job, which its master updates, is not locked yet
        lock_job(row.job)
        checkpoint = checkpoint_of(row.job, params.checkpoint)
        if conflict := _recorded_conflict(checkpoint):
            raise conflict
        if _newest_run(row.job) != newest_run:
            raise Conflict(
                "conflict", f"A run has begun that may need the files of {checkpoint}.", storage.CHECKPOINT_FIELD
            )
        free = Checkpoint.objects.filter(pk=checkpoint.pk, pinned_at=None, held_by=None)
        if not free.exclude(review_state=ReviewState.IN_REVIEW).update(discarded_at=Now()):
            why = "was pinned, taken into review, or chosen for a rollback meanwhile."
            raise Conflict("conflict", f"{str(checkpoint).capitalize()} {why}", storage.CHECKPOINT_FIELD)
        row.phase = "deleting files"
        row.save(force_insert=True)
        return row

    def advance_files(self, row: Operation) -> None:
        """Deletes the files and ends the operation. If storage is unreachable, the next pass retries. The phase of an
        ended discard says if its files were removed by hand.
        """
        still = Operation.objects.filter(pk=row.pk, state=row.state)
        checkpoint = Checkpoint.objects.get(pk=row.params["checkpoint"])
        try:
            was_there = storage.delete_savepoint(checkpoint)
        except EnvironmentFailure as error:
            log.warning("a discarded savepoint is not deleted yet", checkpoint=checkpoint.pk, error=str(error))
            still.update(phase=f"waiting for storage: {error}")
            return
        still.update(
            state=OperationState.SUCCEEDED,
            phase="" if was_there else "the files were already gone",
            started_at=Coalesce("started_at", Now()),
            ended_at=Now(),
            result={"checkpoint": checkpoint.number},
        )


def discards_under_way(savepoint: Checkpoint) -> QuerySet[Operation]:
    """The discard of a savepoint whose files are not deleted yet, with its user."""
    active = Operation.objects.filter(job=savepoint.job_id, kind=OperationKind.DISCARD, state__in=ACTIVE_STATES)
    return active.filter(params__checkpoint=savepoint.pk).select_related("requested_by")


def _newest_run(job: Job) -> int | None:
    return Run.objects.filter(job=job).order_by("-pk").values_list("pk", flat=True).first()


def _conflict(reason: str | None) -> Conflict | None:
    return Conflict("cannot-discard", reason, storage.CHECKPOINT_FIELD) if reason else None


def _recorded_conflict(checkpoint: Checkpoint) -> Conflict | None:
    """Why a checkpoint cannot be discarded according to rows alone; None if they allow it."""
    return _conflict(_reason(checkpoint) or _run_dependency(checkpoint) or _operation_dependency(checkpoint))


def _reason(checkpoint: Checkpoint) -> str | None:
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
    checkpoints = Checkpoint.objects.filter(run=run, status=Status.COMPLETED, kind=Kind.CHECKPOINT, discarded_at=None)
    if begins and not checkpoints.exists():
        return f"Run {run.pk} was restored from this savepoint and has not completed a checkpoint yet."
    return None


def _operation_dependency(checkpoint: Checkpoint) -> str | None:
    """The refusal if an active operation reads the savepoint's files, or will restore the savepoint."""
    reading = [each.kind for each in operation_types() if each.reads_files]
    needing = Q(kind__in=reading, params__checkpoint=checkpoint.pk)
    needing |= Q(kind=OperationKind.COPY, part_of__result__checkpoint=checkpoint.number)
    if checkpoint.kind == Kind.STOP:
        successions = [each.kind for each in types_of(Succession)]
        needing |= Q(kind__in=successions, run=checkpoint.run_id)
    row = Operation.objects.filter(needing, job=checkpoint.job_id, state__in=ACTIVE_STATES).first()
    return f"Operation {row.pk} ({row.kind}) needs the savepoint's files until it ends." if row else None


def _checkpoint_dependency(checkpoint: Checkpoint) -> str | None:
    """The refusal if a later checkpoint may need the savepoint's files. Savepoints and earlier checkpoints never do."""
    candidates = Checkpoint.objects.filter(job=checkpoint.job_id, status=Status.COMPLETED, discarded_at=None)
    later = candidates.filter(kind=Kind.CHECKPOINT, number__gt=checkpoint.number).order_by("-number")
    for other in later.defer("operators"):
        is_needed = _needs_files(other, checkpoint)
        if is_needed is None:
            return f"{str(other).capitalize()} cannot be read and may need the savepoint's files."
        if is_needed:
            return f"{str(other).capitalize()} needs the savepoint's files until newer checkpoints replace it."
    return None


def _needs_files(other: Checkpoint, savepoint: Checkpoint) -> bool | None:
    """Whether `other` needs files of a savepoint; None if its manifest cannot be read."""
    key = ("files of a savepoint", other.pk, savepoint.pk)
    return read_in_time(key, partial(storage.needs_folder, other, savepoint.path))
