"""Operations and maintenance mode as JSON, and the requests for them."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from console.api.json_schemas import inline_references
from console.api.serializers.base import StrictSerializer
from console.jobs.changes import MAX_REASON_LENGTH
from console.operations.models import Maintenance, Operation
from console.operations.registry import params_schemas


@extend_schema_field(
    {
        "type": "object",
        "anyOf": [
            {**inline_references(schema), "title": f"Parameters of {', '.join(kinds)}"}
            for kinds, schema in params_schemas().items()
        ],
    }
)
class ParamsField(serializers.DictField):
    """The parameters of an operation, which depend on its kind."""


@extend_schema_field({"type": "string", "enum": [kind for kinds in params_schemas() for kind in kinds]})
class KindField(serializers.CharField):
    """The kind of an operation. Its refusal names the kinds that there are."""


class OperationRequest(StrictSerializer):
    """`params` depend on `kind` and have a schema for each. `version` and `checkpoint` are ids of rows, not numbers
    within the job.

    - start, restore, rescale: begin a run. With `when_ready` a start waits for the compilation of its version.
    - rollback: the run ends by `end_run`, then `checkpoint` is restored.
    - savepoint, stop, drain, cancel: with `run`, the request is refused if another run is the latest by then.
    - clone, drill: restore `checkpoint` beside the job, with output discarded. A drill measures the time to the first
      checkpoint, then removes its clone.
    - schedule: savepoints or drills at regular times, except within `blackouts`, such as "sat,sun 00:00-24:00" (UTC).
    - discard, pin, unpin, verify, copy, label, assign, comment, review: of `checkpoint`.
    """

    kind = KindField()
    params = ParamsField(required=False)
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
