"""The evidence that a snapshot of a job can be restored: the restore drill that ended last.

A drill that may drop state (`allow_unmapped`), or that a user has withdrawn, proves nothing.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import BigIntegerField, OuterRef, Subquery
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, JSONObject

from console.checkpoints.models import Checkpoint
from console.checkpoints.operation_codes import INCONCLUSIVE
from console.operations.models import Operation, OperationKind, OperationState

_ENDED = (OperationState.SUCCEEDED, OperationState.FAILED)


class RestoreProof(msgspec.Struct, frozen=True, kw_only=True):
    """The drill that ended last. `took_ms`: time from its request to the first checkpoint of its clone.

    `error` is null after a success.
    """

    drill: str
    ended_at: datetime
    checkpoint: int | None  #: id of the row of the snapshot
    number: int | None  #: of the snapshot within its job
    took_ms: float | None
    error: str | None


def latest_proof(job: str) -> Subquery:
    """The drill of a job that ended last, as JSON: an annotation of rows whose column `job` is the id of the job."""
    ended = Operation.objects.filter(job=OuterRef(job), kind=OperationKind.DRILL, state__in=_ENDED)
    drills = ended.exclude(params__contains={"allow_unmapped": True})
    for code in INCONCLUSIVE:
        drills = drills.exclude(error__contains={"code": code})
    pk: Any = Cast(KeyTextTransform("checkpoint", "params"), BigIntegerField())
    numbers = Checkpoint.objects.filter(pk=OuterRef("snapshot")).values("number")
    proof = JSONObject(
        drill="pk", ended_at="ended_at", checkpoint="snapshot", number=Subquery(numbers),
        took_ms=Cast(KeyTextTransform("first_checkpoint_ms", "result"), BigIntegerField()),
        error=KeyTextTransform("message", "error"),
    )  # fmt: skip
    return Subquery(drills.annotate(snapshot=pk).order_by("-created_at").values(proof=proof)[:1])


def read_proof(annotation: dict[str, Any] | None) -> RestoreProof | None:
    """The annotation of `latest_proof`."""
    return None if annotation is None else msgspec.convert(annotation, RestoreProof)


def proof_of(checkpoint: Checkpoint, drills: Iterable[Operation]) -> RestoreProof | None:
    """The drill of `checkpoint` that ended last, of `drills`, which are sorted newest first."""
    carried_out = (drill for drill in drills if (drill.error or {}).get("code") not in INCONCLUSIVE)
    full_drills = (drill for drill in carried_out if not drill.params.get("allow_unmapped"))
    ended = next((drill for drill in full_drills if drill.state in _ENDED and drill.ended_at), None)
    if ended is None or ended.ended_at is None:
        return None
    return RestoreProof(
        drill=str(ended.pk), ended_at=ended.ended_at, checkpoint=checkpoint.pk, number=checkpoint.number,
        took_ms=(ended.result or {}).get("first_checkpoint_ms"), error=(ended.error or {}).get("message"),
    )  # fmt: skip
