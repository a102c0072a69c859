"""The effects of a rescale before it is requested, as on its page."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.serializers.base import Problem
from console.operations.params import RescaleParams
from console.operations.restores.rescale_plan import rescale_plan


class ExpectedDurationSerializer(serializers.Serializer[Any]):
    """Durations of the last successful operations of the job, from request to end. Without any, a restore has those of
    restarts or starts. A stop then has those of savepoints, or of the newest checkpoint with the count 0: it takes
    longer.
    """

    median_ms = serializers.FloatField()
    longest_ms = serializers.FloatField()
    count = serializers.IntegerField()


class RescalePlanSerializer(serializers.Serializer[Any]):
    """`refusal`: why the rescale is not possible now; then version and parallelism are null."""

    run = serializers.IntegerField(source="run.pk", default=None, allow_null=True, help_text="The run that stops.")
    version = serializers.IntegerField(source="version.pk", default=None, allow_null=True)
    parallelism_before = serializers.IntegerField(source="run.parallelism", default=None, allow_null=True)
    parallelism = serializers.IntegerField(allow_null=True, help_text="It is the number of slots too.")
    slots_elsewhere = serializers.IntegerField(
        source="cost.slots_elsewhere", help_text="Slots that runs of other jobs hold or wait for."
    )
    state_bytes = serializers.IntegerField(
        source="cost.newest.size_bytes", default=None, allow_null=True, help_text="State of the newest checkpoint."
    )
    stop = ExpectedDurationSerializer(source="cost.stop", allow_null=True)
    restore = ExpectedDurationSerializer(source="cost.restore", allow_null=True)
    refusal = serializers.CharField(source="refusal.detail", default=None, allow_null=True)
    plan_hash = serializers.CharField(
        help_text="A rescale with it as parameter stops this run, or is refused. Empty: the job never ran."
    )


class RescaleQuery(serializers.Serializer[Any]):
    """`version` is the id of a version of the job (default: that of the run); `parallelism` defaults to the version's.
    Either is needed.
    """

    version = serializers.IntegerField(min_value=1, required=False)
    parallelism = serializers.IntegerField(min_value=1, required=False)
    allow_unmapped = serializers.BooleanField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "version" not in attrs and "parallelism" not in attrs:
            raise serializers.ValidationError({"parallelism": "must be given, or else a version"})
        return attrs


class RescaleEffects(ScopedView):
    """The effects of a rescale: slots, state, and the durations of earlier stops and restores."""

    serializer_class = RescalePlanSerializer
    query = frozenset({"version", "parallelism", "allow_unmapped"})

    @extend_schema(parameters=[RescaleQuery], responses={200: RescalePlanSerializer, 400: Problem, 404: Problem})
    def get(self, request: Request, job: int) -> Response:
        """The effects only: the operation `rescale` carries them out."""
        query = RescaleQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        plan = rescale_plan(self.parent(), RescaleParams(**query.validated_data))
        return Response(self.get_serializer(plan).data)
