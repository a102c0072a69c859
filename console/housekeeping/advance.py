"""Passes over the active operations that the console itself takes further.

`advance_rows` reads rows alone: a step of the reconciler. `advance_operations` works on files in the queue `stages`.
Deleting or copying a large folder takes minutes, and storage may hang, so runs are watched meanwhile. If the worker
dies, Postgres releases its lock, and the next pass repeats the work.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from typing import Final

import structlog
from django.db import transaction
from django.db.models import F, Q, QuerySet

from console.advisory_lock import try_lock
from console.checkpoints.storage import mark_storage
from console.housekeeping import scheduled_operations
from console.operations.models import ACTIVE_STATES, Operation
from console.operations.operation_type import OperationType
from console.operations.registry import operation_type, operation_types
from console.operations.restores import clones

#: Key of the advisory lock of passes that copy or delete large folders. A console runs one at a time, so they leave the
#: other workers of the queue `stages` to compilations.
FILE_WORK_LOCK: Final = 0x57454952_46494C45

log = structlog.get_logger(__name__)


def advance_rows() -> None:
    """Takes each operation as far as its rows allow, parts before their whole, in a transaction each.

    Operations that another pass holds are skipped. A worker that dies leaves the operation to the next pass.

    Raises:
        ExceptionGroup: the errors of the operations that failed; they stop no other operation.
    """
    due = reduce(or_, (Q(each.due, kind=each.kind) for each in operation_types() if each.due is not None))
    active, errors = _active().filter(due), []
    for pk in active.order_by(F("part_of").asc(nulls_last=True), "created_at").values_list("pk", flat=True):
        try:
            with transaction.atomic():
                rows = active.select_for_update(of=("self",), no_key=True, skip_locked=True)
                row = rows.select_related("job", "run").filter(pk=pk).first()
                if row is not None:
                    operation_type(row.kind).advance(row)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if errors:
        raise ExceptionGroup("operations are not advanced", errors)


def advance_operations() -> bool:
    """A pass over all work on files: scheduled discards, operations, and unfinished clones.

    An unexpected error of one kind of work, or of one operation, stops no other. False: another pass is under way.
    """
    with try_lock(FILE_WORK_LOCK) as is_free:
        for work in _file_work() if is_free else ():
            with _log_error(work):
                work()
    return is_free


def _file_work() -> Iterator[Callable[[], object]]:
    yield mark_storage  # before deletions, which need the marker
    yield scheduled_operations.discard_surplus
    for operation in operation_types():
        if operation.files_due is not None:
            yield partial(_advance_files, operation, operation.files_due)
    yield clones.delete_unfinished_clones


def _advance_files(operation: OperationType, due: Q) -> None:
    rows = _active().filter(due, kind=operation.kind).order_by("created_at")
    for row in rows.select_related("job", "part_of", "requested_by")[: operation.files_at_once]:
        with _log_error(row):
            operation.advance_files(row)


@contextmanager
def _log_error(work: object) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("file work failed", work=repr(work))


def _active() -> QuerySet[Operation]:
    return Operation.objects.filter(state__in=ACTIVE_STATES)
