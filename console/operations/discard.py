"""Discarding a savepoint: check dependencies, record the discard, then delete the files.

Retention never discards savepoints, so only this operation frees their storage. Checkpoints of a
run restored from a savepoint may need the savepoint's files until compaction has replaced these files.
"""

import structlog
from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Now

from console.accounts.refusals import Conflict
from console.checkpoints import storage
from console.checkpoints.models import Checkpoint, ReviewState
from console.jobs.models import Job, Run
from console.jobs.services import lock_job
from console.operations.labels import checkpoint_of
from console.operations.legality import discard_conflict, recorded_discard_conflict
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from console.operations.params import CheckpointParams

log = structlog.get_logger(__name__)


def accept(row: Operation, wanted: CheckpointParams) -> Operation:
    """Marks a savepoint as discarded, so that it cannot be restored; `console.operations.file_work` deletes its files.

    Raises:
        Refused: the job has no such savepoint, or the storage cannot be read at the moment.
        Conflict: the savepoint is not completed, is already discarded, is pinned or in review, or a run, a checkpoint
            or an operation depends on it.
    """
    newest_run = _newest_run(row.job)
    if refused := discard_conflict(checkpoint_of(row.job, wanted.checkpoint)):
        raise refused  # manifests were read: the row of the job, which its master updates, is not locked yet
    lock_job(row.job)
    checkpoint = checkpoint_of(row.job, wanted.checkpoint)
    if refused := recorded_discard_conflict(checkpoint):
        raise refused
    if _newest_run(row.job) != newest_run:
        raise Conflict(
            "conflict", f"A run has begun that may need the files of {checkpoint}.", storage.CHECKPOINT_FIELD
        )
    free = Checkpoint.objects.filter(pk=checkpoint.pk, pinned_at=None, held_by=None)
    if not free.exclude(review_state=ReviewState.IN_REVIEW).update(discarded_at=Now()):
        detail = f"{str(checkpoint).capitalize()} was pinned, taken into review, or chosen for a rollback meanwhile."
        raise Conflict("conflict", detail, storage.CHECKPOINT_FIELD)
    row.phase = "deleting files"
    row.save(force_insert=True)
    return row


def _newest_run(job: Job) -> int | None:
    return Run.objects.filter(job=job).order_by("-pk").values_list("pk", flat=True).first()


def discards_under_way(savepoint: Checkpoint) -> QuerySet[Operation]:
    """The discard of a savepoint whose files are not deleted yet, with its user."""
    active = Operation.objects.filter(job=savepoint.job_id, kind=OperationKind.DISCARD, state__in=ACTIVE_STATES)
    return active.filter(params__checkpoint=savepoint.pk).select_related("requested_by")


def delete_discarded_files() -> None:
    """Deletes the files of discarded savepoints and ends their operations. If storage is unreachable, the next pass
    retries. The phase of an ended discard says if its files were removed by hand.
    """
    for operation in Operation.objects.filter(kind=OperationKind.DISCARD, state__in=ACTIVE_STATES):
        still = Operation.objects.filter(pk=operation.pk, state=operation.state)
        checkpoint = Checkpoint.objects.get(pk=operation.params["checkpoint"])
        try:
            was_there = storage.delete_savepoint(checkpoint)
        except OSError as error:
            log.warning("a discarded savepoint is not deleted yet", checkpoint=checkpoint.pk, error=str(error))
            still.update(phase=f"waiting for storage: {error}")
            continue
        still.update(
            state=OperationState.SUCCEEDED,
            phase="" if was_there else "the files were already gone",
            started_at=Coalesce("started_at", Now()),
            ended_at=Now(),
            result={"checkpoint": checkpoint.number},
        )
