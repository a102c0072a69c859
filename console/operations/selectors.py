"""Queries of operations for pages and services."""

from django.db.models import Q, QuerySet

from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, Run
from console.operations.models import ACTIVE_STATES, Operation, OperationKind

_OPERATION_RUN_COLUMNS = ("id", "state", "started_at", "ended_at")


def active_operations(job: Job) -> QuerySet[Operation]:
    """The operations of a job that are queued or running, oldest first, with their users."""
    return (
        Operation.objects.filter(job=job, state__in=ACTIVE_STATES).select_related("requested_by").order_by("created_at")
    )


def operations_beside(checkpoint: Checkpoint) -> QuerySet[Operation]:
    """The active operations of the job of a snapshot, and the discard of the snapshot, as `active_operations`."""
    discard = Q(kind=OperationKind.DISCARD, params__checkpoint=checkpoint.pk)
    rows = Operation.objects.filter(Q(state__in=ACTIVE_STATES) | discard, job=checkpoint.job_id)
    return rows.select_related("requested_by").order_by("created_at")


def operations_matching(text: str) -> Q:
    """The condition for operations with `text` in the name of their job or in the reason, or as request id."""
    return Q(job__name__icontains=text) | Q(reason__icontains=text) | Q(request_id=text)


def with_runs(rows: QuerySet[Operation]) -> QuerySet[Operation]:
    """Operations, newest first, with the id, the state and the times of their run and no other run column."""
    related = rows.select_related("job", "requested_by", "run").order_by("-created_at", "-pk")
    return related.defer(
        *(f"run__{field.attname}" for field in Run._meta.concrete_fields if field.name not in _OPERATION_RUN_COLUMNS)
    )
