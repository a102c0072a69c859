"""The history of a job across its runs: the origin of a savepoint, the runs that a snapshot was restored into, and the
rescales.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import BigIntegerField, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from console.checkpoints.models import Checkpoint
from console.jobs.models import Attempt, Job, JobVersion, Run
from console.operations.models import Operation, OperationKind

_LONGEST_WAIT: Final = timedelta(days=1)  #: of a request before its savepoint is triggered
_MAX_REQUESTS: Final = 5  #: of the same kind at the same time
_MAX_SKEW: Final = timedelta(seconds=1)  #: of the clocks of job master and database


def request_of(savepoint: Checkpoint) -> Operation | None:
    """The operation that took `savepoint`, or failed to; None if none is recorded, or several may have. A query.

    Only an operation that has succeeded names its savepoint. Another one is recognised by its time.
    """
    at = savepoint.triggered_at
    rows = Operation.objects.filter(
        Q(ended_at=None) | Q(ended_at__gte=at), job=savepoint.job_id, run=savepoint.run_id, kind=savepoint.kind,
        created_at__gt=at - _LONGEST_WAIT, created_at__lte=at + _MAX_SKEW,
    )  # fmt: skip
    operations = tuple(rows.select_related("requested_by")[:_MAX_REQUESTS])
    candidates = [row for row in operations if row.made_savepoint == savepoint.number]
    candidates = candidates or [row for row in operations if row.made_savepoint is None]
    return candidates[0] if len(candidates) == 1 else None


def restored_runs(checkpoint: Checkpoint) -> QuerySet[Any]:
    """Runs that a checkpoint was restored into, newest first, with their job and version.

    A run begins with the checkpoint, an attempt of it recovers from the checkpoint, or it belongs to a clone.
    `recovered_at` is the start of the newest attempt that was restored from the checkpoint.
    """
    began = Run.objects.filter(restore_checkpoint=checkpoint).values_list("pk")
    recovered = Attempt.objects.filter(restored_checkpoint=checkpoint)
    of_clones = Run.objects.filter(job__cloned_from=checkpoint).values_list("pk")
    pks = began.order_by().union(recovered.order_by().values_list("run"), of_clones.order_by())
    attempts = recovered.filter(run=OuterRef("pk")).order_by("-token")
    runs = Run.objects.filter(pk__in=pks).annotate(recovered_at=Subquery(attempts.values("started_at")[:1]))
    return runs.select_related("job", "version").only(
        "job__name", "job__cloned_from", "version__number", "parallelism", "state", "created_at",
        "restore_checkpoint",
    ).order_by("-pk")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rescale:
    """A rescale: the run before and the run after it. `downtime_ms`: from the end of the run to the new run's start.

    The new run has started when it is running. Versions are numbers.
    """

    operation: Operation
    former: int
    former_version: int
    parallelism: int
    version: int | None
    run: int | None
    downtime_ms: float | None


def rescales_of(job: Job, limit: int) -> list[Rescale]:
    """The newest rescales of a job, newest first."""
    restore = Operation.objects.filter(part_of=OuterRef("pk"), kind=OperationKind.RESTORE).order_by("-created_at")
    versions = JobVersion.objects.filter(pk=OuterRef("wanted")).values("number")
    version_pk: Any = Cast(KeyTextTransform("version", "params"), BigIntegerField())
    rows: Any = Operation.objects.filter(job=job, kind=OperationKind.RESCALE).select_related("requested_by")
    rescales = rows.annotate(
        former=F("run__parallelism"), former_version=F("run__version__number"), stopped_at=F("run__ended_at"),
        wanted=version_pk, version=Subquery(versions), new_run=Subquery(restore.values("run")[:1]),
        running_at=Subquery(restore.values("ended_at")[:1]),
    ).order_by("-created_at", "-pk")  # fmt: skip
    return [
        Rescale(
            row, row.former, row.former_version, row.params["parallelism"], row.version, row.new_run,
            _between_ms(row.stopped_at, row.running_at),
        )
        for row in rescales[:limit]
    ]  # fmt: skip


def _between_ms(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else (end - begin).total_seconds() * 1000
