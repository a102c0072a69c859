"""Discarding a savepoint: refused while something depends on it, recorded first, then its files are deleted.

Retention never discards savepoints, so without this act they stay for ever. A savepoint is whole in its own folder, but
checkpoints of a run that was restored from it may name its files until they are merged.
"""

import structlog
from django.db.models.functions import Coalesce, Now

from console.accounts.refusals import Conflict, Refused
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, Kind, Status
from console.jobs.models import Job, Run
from console.operations.models import ACTIVE, Operation, OperationKind, OperationState
from runtime.core.job.lifecycle import TERMINAL

log = structlog.get_logger(__name__)


def lock(job: Job) -> None:
    """Until the end of the transaction no other request restores or discards a checkpoint of the job."""
    Job.objects.select_for_update(no_key=True).get(pk=job.pk)


def accept(row: Operation, checkpoint_id: int) -> Operation:
    """Takes a savepoint off the list of what may be restored; the reconciler deletes its files.

    Raises:
        Refused: there is no such savepoint of the job.
        Conflict: it is not complete, discarded already, or something depends on it.
    """
    lock(row.job)
    checkpoint = Checkpoint.objects.filter(pk=checkpoint_id, job=row.job).first()
    if checkpoint is None:
        detail = f"params.checkpoint: this job has no checkpoint with the id {checkpoint_id}."
        raise Refused("unknown-checkpoint", detail, field=storage.ROW)
    if reason := refusal(checkpoint):
        raise Conflict("cannot-discard", reason, storage.ROW)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(discarded_at=Now())
    row.phase = "deleting files"
    row.save(force_insert=True)
    return row


def refusal(checkpoint: Checkpoint) -> str | None:
    """Why it cannot be discarded now; None if it can."""
    name = str(checkpoint).capitalize()
    if checkpoint.kind == Kind.CHECKPOINT:
        return f"{name} is no savepoint: retention discards checkpoints when newer ones have completed."
    if checkpoint.status != Status.COMPLETED:
        return f"{name} is {checkpoint.status.replace('_', ' ')}; only a completed one can be discarded."
    if checkpoint.discarded_at is not None:
        return f"{name} has been discarded already."
    return _run_that_depends(checkpoint) or _checkpoint_that_depends(checkpoint)


def _run_that_depends(checkpoint: Checkpoint) -> str | None:
    run = Run.objects.filter(job=checkpoint.job_id).exclude(state__in=TERMINAL).order_by("-pk").first()
    if run is None:
        return None
    if run.pk == checkpoint.run_id and checkpoint.kind in (Kind.STOP, Kind.DRAIN):
        return f"Run {run.pk} is ending with it."
    begins = run.restore_checkpoint_id == checkpoint.pk or run.restore_path == checkpoint.path
    own = Checkpoint.objects.filter(run=run, status=Status.COMPLETED, kind=Kind.CHECKPOINT, discarded_at=None)
    if begins and not own.exists():
        return f"Run {run.pk} was started from it and has completed no checkpoint yet."
    return None


def _checkpoint_that_depends(checkpoint: Checkpoint) -> str | None:
    """Savepoints name their own files only, and a checkpoint none that came after it."""
    others = Checkpoint.objects.filter(job=checkpoint.job_id, status=Status.COMPLETED, discarded_at=None)
    later = others.filter(kind=Kind.CHECKPOINT, number__gt=checkpoint.number).order_by("-number")
    for other in later.defer("operators"):
        needed = storage.needs(other, checkpoint.path)
        if needed is None:
            return f"{str(other).capitalize()} cannot be read and may need its files."
        if needed:
            return f"{str(other).capitalize()} needs its files. They are free when newer checkpoints have replaced it."
    return None


def remove_files() -> None:
    """Deletes the files of what was discarded, and ends the operations. Storage that is away is tried again."""
    for operation in Operation.objects.filter(kind=OperationKind.DISCARD, state__in=ACTIVE):
        still = Operation.objects.filter(pk=operation.pk, state=operation.state)
        checkpoint = Checkpoint.objects.get(pk=operation.params["checkpoint"])
        try:
            storage.remove(checkpoint)
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
