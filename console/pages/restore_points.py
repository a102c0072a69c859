"""The oldest restore point of a job: how far back a user can go."""

from datetime import datetime
from typing import Any

import msgspec
from django.db.models import F, OuterRef, Q, Subquery
from django.db.models.functions import JSONObject

from console.checkpoints.models import Checkpoint, ReviewState, Status, noun
from console.checkpoints.selectors import IS_DAMAGED
from console.jobs.models import ReviewPolicy
from runtime.core.job.settings import ExecutionMode


class RestorePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with undamaged files that the policy of its job allows to restore."""

    pk: int
    number: int
    kind: str
    triggered_at: datetime

    @property
    def noun(self) -> str:
        return noun(self.kind)


def oldest_restorable(job: str = "") -> Subquery:
    """The oldest restore point as JSON: an annotation of jobs, or with the prefix `job__` of rows of a job."""
    checkpoints = Checkpoint.objects.filter(job=OuterRef(f"{job}pk"), status=Status.COMPLETED, discarded_at=None)
    candidates: Any = checkpoints.filter(
        ~IS_DAMAGED, ~Q(run__version__graph__contains={"mode": ExecutionMode.BATCH.value})
    )
    is_free = ~Q(job__review_policy=ReviewPolicy.REFUSE.value)
    allowed = candidates.filter(is_free | Q(review_state=ReviewState.REVIEWED.value)).order_by("number")
    point = JSONObject(pk=F("pk"), number=F("number"), kind=F("kind"), triggered_at=F("triggered_at"))
    return Subquery(allowed.values(point=point)[:1])


def read_restore_point(annotation: dict[str, Any] | None) -> RestorePoint | None:
    """The annotation of `oldest_restorable`."""
    return None if annotation is None else msgspec.convert(annotation, RestorePoint)
