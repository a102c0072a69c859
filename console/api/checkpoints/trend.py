"""Trend of a job's checkpoints over days."""

from typing import Any, Final

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.json_schemas import integer_from
from console.api.parsing import number_between
from console.api.serializers.base import Problem
from console.checkpoints.models import Checkpoint
from console.checkpoints.trend import daily_trend

MAX_DAYS: Final = 90


class DayTrendSerializer(serializers.Serializer[Any]):
    """A day in UTC. Percentiles are null for a day without a completed checkpoint."""

    day = serializers.DateField()
    checkpoints = serializers.IntegerField(help_text="Number of completed checkpoints and savepoints.")
    duration_p50_ms = serializers.IntegerField(allow_null=True)
    duration_p95_ms = serializers.IntegerField(allow_null=True)
    size_p50_bytes = serializers.IntegerField(allow_null=True)
    size_p95_bytes = serializers.IntegerField(allow_null=True)
    failures = serializers.DictField(
        child=serializers.IntegerField(), help_text="By reason: checkpoints and savepoints that failed."
    )


class CheckpointTrend(ScopedView):
    """Percentiles of the duration and the full size of completed checkpoints, and failures by reason, by day."""

    queryset = Checkpoint.objects.none()  # for the OpenAPI document: lists have a model
    serializer_class = DayTrendSerializer
    query = frozenset({"days"})
    pagination_class = None

    @extend_schema(
        parameters=[
            OpenApiParameter("days", integer_from(1, MAX_DAYS), description="Days including today; default 30")
        ],
        responses={200: DayTrendSerializer(many=True), 404: Problem, 422: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        """The last days, oldest first."""
        of = self.parent()
        days = number_between("days", request.query_params.get("days", "30"), 1, MAX_DAYS)
        return Response(DayTrendSerializer(daily_trend(of, days, timezone.now()), many=True).data)
