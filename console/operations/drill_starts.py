"""Requests for restore drills, and the start of their clones by a worker of the console.

A clone takes file work, so a request only writes the operation, which holds the snapshot until the clone has its files.
`console.operations.drills` then measures and removes the clone.
"""

from datetime import timedelta
from http import HTTPStatus
from typing import Final

import structlog
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from console.accounts.refusals import Refused
from console.jobs.services import lock_job
from console.operations.clones import clone_target, create_clone, prepared_clone
from console.operations.holds import hold, release
from console.operations.legality import drill_conflict
from console.operations.models import Operation, OperationKind, OperationState
from console.operations.params import CloneParams, parse_params
from console.operations.passes import WorkWithdrawn

LIMIT: Final = timedelta(minutes=30)  #: for the storage to become usable, then for the clone's first checkpoint

log = structlog.get_logger(__name__)


def accept_drill(row: Operation, wanted: CloneParams) -> Operation:
    """Queues the drill for a worker of the console.

    Raises:
        Refused: as `clone_target`.
        Conflict: another drill of the job has not ended, or another operation holds the snapshot.
    """
    lock_job(row.job)
    if refused := drill_conflict(row.job):
        raise refused
    _, _, snapshot = clone_target(row.job, wanted)
    hold(snapshot, row)
    row.phase = "waiting for a worker"
    row.save(force_insert=True)
    row.refresh_from_db()  # reads the times that Postgres has set
    return row


def start_drills() -> None:
    """Creates the clones of queued drills, oldest first. If storage is unreachable, the next pass retries."""
    queued = Operation.objects.filter(kind=OperationKind.DRILL, state=OperationState.QUEUED)
    for row in queued.order_by("created_at").select_related("job", "requested_by"):
        try:
            _start(row)
        except WorkWithdrawn:
            log.info("a drill was withdrawn while its clone was created", operation=str(row.pk))
        except Refused as refused:
            _end_or_wait(row, refused)
        except IntegrityError as error:
            log.warning("the clone of a drill is not created yet", operation=str(row.pk), error=str(error))


def _start(row: Operation) -> None:
    wanted = parse_params(OperationKind.DRILL, row.params)
    with prepared_clone(row, wanted) as prepared, transaction.atomic():
        run = create_clone(row, prepared, "drill")
        result = {"job": run.job_id, "run": run.pk, "restored_bytes": prepared.restored_bytes}
        release(row)
        if not _row_in_queue(row).update(state=OperationState.RUNNING, started_at=Now(), result=result):
            raise WorkWithdrawn


def _end_or_wait(row: Operation, refused: Refused) -> None:
    if refused.status == HTTPStatus.SERVICE_UNAVAILABLE and timezone.now() - row.created_at < LIMIT:
        log.warning("the clone of a drill is not created yet", operation=str(row.pk), error=refused.detail)
        _row_in_queue(row).update(phase=f"waiting for storage: {refused.__cause__}")
        return
    with transaction.atomic():
        release(row)
        error = {"code": refused.code, "message": refused.detail}
        _row_in_queue(row).update(state=OperationState.FAILED, phase="", ended_at=Now(), error=error)


def _row_in_queue(row: Operation) -> QuerySet[Operation]:
    """The row, unless the drill was withdrawn meanwhile."""
    return Operation.objects.filter(pk=row.pk, state=OperationState.QUEUED)
