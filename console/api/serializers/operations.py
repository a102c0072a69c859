"""Operations and maintenance mode as JSON, and the requests for them."""

from typing import Any

from rest_framework import serializers

from console.api.serializers.base import StrictSerializer
from console.jobs.changes import MAX_REASON_LENGTH
from console.operations.models import Maintenance, Operation


class OperationRequest(StrictSerializer):
    """`params` of start: {version?, parallelism?, accept_repeated_output?}. A restore also takes {checkpoint | path,
    allow_unmapped?}, where `path` is the folder of a savepoint. A rescale takes {parallelism?, version?,
    allow_unmapped?, plan_hash?}. Savepoint, stop and drain take {name?, note?, pin?, target?} of their savepoint, and
    with cancel {run?}: the request is refused if another run is the latest by then. Copy takes {checkpoint, target}.
    Discard, pin, unpin and verify take {checkpoint}, label takes {checkpoint, name?, note?}; `checkpoint` is the id of
    a row. Assign takes {checkpoint, user}, comment {checkpoint, text} and review {checkpoint, state, note?}. Schedule
    takes {every_hours | daily_at, operation?, keep?, name?} and unschedule {operation?}, where `operation` is
    "savepoint" or "drill".
    """

    kind = serializers.CharField()
    params = serializers.DictField(required=False)
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_REASON_LENGTH)


class MaintenanceRequest(StrictSerializer):
    reason = serializers.CharField(max_length=MAX_REASON_LENGTH)


class MaintenanceSerializer(serializers.ModelSerializer[Maintenance]):
    started_by = serializers.CharField(source="started_by.username", read_only=True)
    ended_by = serializers.CharField(source="ended_by.username", read_only=True, allow_null=True, default=None)

    class Meta:
        model = Maintenance
        fields = ("id", "reason", "started_at", "started_by", "ended_at", "ended_by")


class OperationPhase(serializers.Serializer[Any]):
    """A phase that the operation has entered. Progress within a phase is in `phase` of the operation only."""

    phase = serializers.CharField()
    at = serializers.DateTimeField()


class OperationSerializer(serializers.ModelSerializer[Operation]):
    phases = OperationPhase(many=True, read_only=True)

    class Meta:
        model = Operation
        fields = (
            "id", "job", "run", "part_of", "kind", "params", "state", "phase", "phases", "reason", "requested_by",
            "request_id", "idempotency_key", "created_at", "started_at", "ended_at", "result", "error",
        )  # fmt: skip
