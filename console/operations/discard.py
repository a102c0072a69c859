"""Discarding a savepoint: check dependencies, record the discard, then delete the files.

Retention never discards savepoints, so only this operation frees their storage. A savepoint is self-contained, but
checkpoints of a run restored from it may name its files until compaction has replaced them.
"""

import structlog
from django.db.models.functions import Coalesce, Now

from console.accounts.refusals import Conflict, Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Kind, Status
from console.jobs.models import Job, Run
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from runtime.core.job.lifecycle import TERMINAL_STATES

log = structlog.get_logger(__name__)


def lock_job(job: Job) -> None:
    """Lock the job's row, so that no other transaction restores or discards a checkpoint of the job."""
    Job.objects.select_for_update(no_key=True).get(pk=job.pk)


def accept(row: Operation, checkpoint_id: int) -> Operation:
    """Mark a savepoint as discarded, so that it cannot be restored; the reconciler deletes its files.

    Raises:
        Refused: the job has no such savepoint.
        Conflict: it is not completed, is already discarded, or a run or checkpoint depends on it.
    """
    lock_job(row.job)
    checkpoint = Checkpoint.objects.filter(pk=checkpoint_id, job=row.job).first()
    if checkpoint is None:
        detail = f"params.checkpoint: this job has no checkpoint with the id {checkpoint_id}."
        raise Refused("unknown-checkpoint", detail, field=storage.CHECKPOINT_FIELD)
    if reason := refusal(checkpoint):
        raise Conflict("cannot-discard", reason, storage.CHECKPOINT_FIELD)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(discarded_at=Now())
    row.phase = "deleting files"
    row.save(force_insert=True)
    return row


def refusal(checkpoint: Checkpoint) -> str | None:
    """Why the checkpoint cannot be discarded now; None if it can."""
    name = str(checkpoint).capitalize()
    if checkpoint.kind == Kind.CHECKPOINT:
        return f"{name} is not a savepoint: retention discards checkpoints once newer checkpoints have completed."
    if checkpoint.status != Status.COMPLETED:
        return f"{name} is {checkpoint.status.replace('_', ' ')}; only a completed savepoint can be discarded."
    if checkpoint.discarded_at is not None:
        return f"{name} is already discarded."
    return _run_dependency(checkpoint) or _checkpoint_dependency(checkpoint)


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


def _checkpoint_dependency(checkpoint: Checkpoint) -> str | None:
    """The refusal if a later checkpoint needs the savepoint's files. Savepoints and earlier checkpoints never do."""
    others = Checkpoint.objects.filter(job=checkpoint.job_id, status=Status.COMPLETED, discarded_at=None)
    later = others.filter(kind=Kind.CHECKPOINT, number__gt=checkpoint.number).order_by("-number")
    for other in later.defer("operators"):
        needed = storage.needs_folder(other, checkpoint.path)
        if needed is None:
            return f"{str(other).capitalize()} cannot be read and may need the savepoint's files."
        if needed:
            return f"{str(other).capitalize()} needs the savepoint's files until newer checkpoints replace it."
    return None


def delete_discarded_files() -> None:
    """Delete the files of discarded savepoints and end their operations. If storage is unreachable, the next pass
    retries.
    """
    for operation in Operation.objects.filter(kind=OperationKind.DISCARD, state__in=ACTIVE_STATES):
        still = Operation.objects.filter(pk=operation.pk, state=operation.state)
        checkpoint = Checkpoint.objects.get(pk=operation.params["checkpoint"])
        try:
            storage.delete_savepoint(checkpoint)
        except OSError as error:
            log.warning("a discarded savepoint is not deleted yet", checkpoint=checkpoint.pk, error=str(error))
            still.update(phase=f"waiting for storage: {error}")
            continue
        still.update(
            state=OperationState.SUCCEEDED,
            phase="",
            started_at=Coalesce("started_at", Now()),
            ended_at=Now(),
            result={"checkpoint": checkpoint.number},
        )
