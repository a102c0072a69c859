"""Removal of old rows: checkpoints, attempts, operations, incidents, answers to idempotent requests, sessions.

A Celery task calls it each minute.
A job with a checkpoint every 5 s stores about 40 MB of rows a day. Rows go in bounded batches, oldest first. A row
stays while anything needs it: a snapshot that can be restored, a pin, a review, a schedule, an operation under way.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import structlog
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.db.models import BigIntegerField, Count, Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Now
from django.db.models.lookups import IsNull

from console.accounts.models import IdempotentRequest
from console.advisory_lock import try_lock
from console.checkpoints.models import ACTIVE_QUERIES, Checkpoint, Kind, ReviewState, StateQuery, Status
from console.incidents.models import Incident
from console.jobs.models import Attempt, Job, Run
from console.operations.kinds.job.succession import Succession
from console.operations.models import (
    ACTIVE_STATES,
    Operation,
    Schedule,
    Verification,
)
from console.operations.operation_type import SnapshotOperation
from console.operations.registry import operation_types, types_of
from runtime.core.job.lifecycle import TERMINAL_STATES

BATCH_ROWS: Final = 500
MAX_PASS_S: Final = 5.0  #: a pass shares its worker with compilations
_LOCK: Final = 0x57454952_4F4C4452  #: key of the advisory lock: a pass at a time

log = structlog.get_logger(__name__)


def remove_old_rows() -> int:
    """Removes rows until none is old, or for about `MAX_PASS_S`. Returns their number; 0 if another pass is under way.

    Checkpoints go first: attempts and operations stay with the checkpoints that they belong to.
    """
    count, deadline = 0, time.monotonic() + MAX_PASS_S
    with try_lock(_LOCK) as is_free:
        removals = (
            _remove_checkpoints, _remove_attempts, _remove_operations, _remove_incidents, _remove_answers,
            _remove_sessions,
        )  # fmt: skip
        for remove in removals if is_free else ():
            count += _remove_batches(remove, deadline)
    if count:
        log.info("removed old rows", rows=count)
    return count


def _remove_batches(remove: Callable[[], int], deadline: float) -> int:
    count = 0
    while True:
        removed = remove()
        count += removed
        if not removed or time.monotonic() > deadline:
            return count


def _days_ago(days: int) -> Any:
    return Now() - timedelta(days=days)


def _keys(rows: QuerySet[Any]) -> list[Any]:
    return list(rows.values_list("pk", flat=True)[:BATCH_ROWS])


def _remove_answers() -> int:
    """Removes answers to idempotent requests after a day."""
    old = IdempotentRequest.objects.filter(created_at__lt=_days_ago(1)).order_by("created_at")
    return IdempotentRequest.objects.filter(pk__in=_keys(old)).delete()[0]


def _remove_sessions() -> int:
    """Removes sessions that have ended, also of strangers who did not come back from the provider of single sign-on."""
    return Session.objects.filter(pk__in=_keys(Session.objects.filter(expire_date__lt=Now()))).delete()[0]


# ---------------------------------------------------------------- checkpoints


def _remove_checkpoints() -> int:
    with transaction.atomic():
        keys = _keys(old_checkpoints().order_by("triggered_at"))
        StateQuery.objects.filter(checkpoint__in=keys).delete()
        Verification.objects.filter(checkpoint__in=keys).delete()
        rows = Checkpoint.objects.filter(pk__in=keys)
        rows._raw_delete(rows.db)  # `delete` would read their large columns
        return len(keys)


def old_checkpoints() -> QuerySet[Any]:
    """Failed and discarded checkpoints that are older than `WEIR_CHECKPOINT_DAYS` and that nothing needs."""
    before = _days_ago(settings.WEIR_CHECKPOINT_DAYS)
    over = Q(status=Status.FAILED) | Q(status=Status.COMPLETED, discarded_at__lt=before)
    attended = (
        Q(pinned_at__isnull=False) | Q(held_by__isnull=False) | Q(assignee__isnull=False)
        | Q(review_state=ReviewState.IN_REVIEW)
    )  # fmt: skip
    end_of_run = Q(kind__in=(Kind.STOP, Kind.DRAIN)) & ~Q(run__state__in=TERMINAL_STATES)
    of_checkpoint = OuterRef("pk")
    references = (
        Exists(Run.objects.filter(restore_checkpoint=of_checkpoint))
        | Exists(Attempt.objects.filter(restored_checkpoint=of_checkpoint))
        | Exists(Job.objects.filter(cloned_from=of_checkpoint))
        | Exists(StateQuery.objects.filter(checkpoint=of_checkpoint, state__in=ACTIVE_QUERIES))
        | Exists(Operation.objects.filter(job=OuterRef("job"), state__in=ACTIVE_STATES))
    )
    old = Checkpoint.objects.filter(over, triggered_at__lt=before).exclude(attended).exclude(end_of_run)
    return old.exclude(references).annotate(point=_newest_restorable()).exclude(_limits_repetition())


def _newest_restorable() -> Subquery:
    """The number of the newest snapshot before the row that can be restored."""
    restorable = Checkpoint.objects.filter(job=OuterRef("job"), status=Status.COMPLETED, discarded_at=None)
    return Subquery(restorable.filter(number__lt=OuterRef("number")).order_by("-number").values("number")[:1])


def _limits_repetition() -> Q:
    """Whether a restore needs the row to name the output that it would repeat.

    These are the job's newest checkpoint that has committed output, and the first one after each restorable snapshot.
    """
    committed = Checkpoint.objects.filter(job=OuterRef("job"), status=Status.COMPLETED).exclude(kind=Kind.SAVEPOINT)
    later = committed.filter(number__gt=OuterRef("number"))
    between = committed.filter(number__gt=OuterRef("point"), number__lt=OuterRef("number"))
    is_first = Q(point__isnull=False) & _is_empty(between)
    return Q(status=Status.COMPLETED) & ~Q(kind=Kind.SAVEPOINT) & (_is_empty(later) | is_first)


def _is_empty(checkpoints: QuerySet[Checkpoint]) -> Q:
    """Reads the first row by number: Postgres plans `NOT EXISTS` as a scan of the whole table, once per outer row."""
    return Q(IsNull(Subquery(checkpoints.order_by("number").values("number")[:1]), True))


# ---------------------------------------------------------------- attempts


def _remove_attempts() -> int:
    """Removes the oldest attempts of runs, and adds their number to the run's, since attempts count from its first."""
    with transaction.atomic():
        keys = _keys(old_attempts().order_by("token"))
        rows = Attempt.objects.filter(pk__in=keys)
        for run, removed in rows.order_by().values_list("run").annotate(removed=Count("pk")):
            Run.objects.filter(pk=run).update(removed_attempts=F("removed_attempts") + removed)
        return rows.delete()[0]


def old_attempts() -> QuerySet[Attempt]:
    """Attempts that ended more than `WEIR_ATTEMPT_DAYS` ago and are neither the run's newest nor after a checkpoint.

    The condition also holds for all older attempts of the run.
    """
    ended = Attempt.objects.filter(ended_at__lt=_days_ago(settings.WEIR_ATTEMPT_DAYS), token__lt=F("run__token"))
    numbered = Checkpoint.objects.filter(run=OuterRef("run"), token__lte=OuterRef("token"))
    younger = Attempt.objects.filter(run=OuterRef("run"), token__lt=OuterRef("token"))
    unended = younger.filter(Q(ended_at__isnull=True) | Q(ended_at__gte=_days_ago(settings.WEIR_ATTEMPT_DAYS)))
    return ended.exclude(Exists(numbered)).exclude(Exists(unended))


# ---------------------------------------------------------------- operations


def _remove_operations() -> int:
    """Removes operations with their parts. A trigger refuses the deletion of ended entries by anything else."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL weir.removes_old_entries = 'on'")
        keys = _keys(old_operations().order_by("ended_at"))
        parts = Operation.objects.filter(part_of__in=keys).delete()[0]
        removed = parts + Operation.objects.filter(pk__in=keys).delete()[0]
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL weir.removes_old_entries = 'off'")
        return removed


def old_operations() -> QuerySet[Operation]:
    """Operations that ended more than `WEIR_OPERATION_DAYS` ago and that nothing needs.

    Changes of definitions stay: they are the history of the job's versions. So do the start of a run that has not
    ended, the newest operation of a schedule, and operations on a checkpoint whose row is there.
    """
    before = _days_ago(settings.WEIR_OPERATION_DAYS)
    begins = [each.kind for each in operation_types() if each.begins_run or isinstance(each, Succession)]
    records = [each.kind for each in operation_types() if each.is_record]
    on_snapshots = [each.kind for each in types_of(SnapshotOperation)]
    starts = Q(kind__in=begins) & Q(run__isnull=False)
    references = (
        Exists(Operation.objects.filter(Q(state__in=ACTIVE_STATES) | Q(ended_at__gte=before), part_of=OuterRef("pk")))
        | Exists(Schedule.objects.filter(last_operation=OuterRef("pk")))
        | Exists(Verification.objects.filter(operation=OuterRef("pk")))
        | Exists(Checkpoint.objects.filter(held_by=OuterRef("pk")))
    )
    old = Operation.objects.filter(ended_at__lt=before, part_of=None).exclude(state__in=ACTIVE_STATES)
    old = old.exclude(kind__in=records).exclude(starts & ~Q(run__state__in=TERMINAL_STATES)).exclude(references)
    key = Cast(KeyTextTransform("checkpoint", OuterRef("params")), BigIntegerField())
    checkpoint = Checkpoint.objects.filter(job=OuterRef("job"), pk=key)
    return old.exclude(Q(kind__in=on_snapshots) & Exists(checkpoint))


# ---------------------------------------------------------------- incidents


def _remove_incidents() -> int:
    """Removes incidents that ended more than `WEIR_OPERATION_DAYS` ago, with their findings, notes and alerts."""
    keys = _keys(Incident.objects.filter(closed_at__lt=_days_ago(settings.WEIR_OPERATION_DAYS)).order_by("closed_at"))
    Incident.objects.filter(pk__in=keys).delete()
    return len(keys)
