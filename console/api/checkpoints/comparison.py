"""Comparison of two checkpoints of a job."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.json_schemas import integer_from
from console.api.parsing import whole_number
from console.api.serializers.base import Problem
from console.checkpoints.comparison import MEASURES, OperatorChange
from console.checkpoints.filters import MAX_BIGINT
from console.pages.comparisons import FIELDS, load_comparison


class ChangeSerializer(serializers.Serializer[Any]):
    """A measure on both sides. `difference` is null if a side is not known."""

    base = serializers.FloatField(allow_null=True)
    other = serializers.FloatField(allow_null=True)
    difference = serializers.FloatField(allow_null=True)


class OperatorChangeSerializer(serializers.Serializer[Any]):
    """An operator. Durations are in ms, the longest of its subtasks; `in_flight_bytes` is the value at the trigger."""

    operator = serializers.CharField(source="uid")
    name = serializers.CharField()
    notable = serializers.BooleanField(
        source="is_notable", help_text="Whether a measure differs by 10 % and by 20 ms, 4 KiB or 1."
    )
    changes = serializers.DictField(child=ChangeSerializer(), help_text=f"By measure: {', '.join(MEASURES)}.")

    def to_representation(self, instance: OperatorChange) -> dict[str, Any]:
        measure = ChangeSerializer()  # one for each change would be 300 serializers
        changes = {name: measure.to_representation(change) for name, change in instance.changes.items()}
        facts = {"operator": instance.uid, "name": instance.name, "notable": instance.is_notable}
        return {**facts, "changes": changes}


class ComparisonSerializer(serializers.Serializer[Any]):
    base = serializers.IntegerField(source="base.number")
    other = serializers.IntegerField(source="other.number")
    sentence = serializers.CharField(help_text="The operator that explains most of the difference, in words.")
    explained_by = serializers.CharField(allow_blank=True, help_text="That operator; empty if no single operator does.")
    duration_ms = ChangeSerializer()
    state_bytes = ChangeSerializer()
    written_bytes = ChangeSerializer()
    operators = OperatorChangeSerializer(many=True)


class CheckpointComparison(ScopedView):
    """Differences between two checkpoints of a job, by operator."""

    serializer_class = ComparisonSerializer
    query = frozenset(FIELDS)

    @extend_schema(
        parameters=[
            OpenApiParameter(name, integer_from(0), required=True, description="Number of a checkpoint within the job")
            for name in FIELDS
        ],
        responses={200: ComparisonSerializer, 400: Problem, 404: Problem, 422: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        """The differences of `other` to `base`."""
        of = self.parent()
        if missing := [name for name in FIELDS if name not in request.query_params]:
            raise serializers.ValidationError(dict.fromkeys(missing, "This parameter is required."))
        base, other = (whole_number(name, request.query_params[name], MAX_BIGINT) for name in FIELDS)
        return Response(self.get_serializer(load_comparison(of, base, other, timezone.now())).data)
