"""The schedules of a job's savepoints and restore drills. Operations `schedule` and `unschedule` change them."""

from datetime import datetime

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.serializers.base import Problem
from console.operations.models import Schedule, ScheduledOperation
from console.operations.schedules import SHOWN_TIMES, next_times


class ScheduleSerializer(serializers.ModelSerializer[Schedule]):
    """Either `every_hours` or `daily_at` (UTC) is set. `missed_at`: the last time without the operation, and why."""

    next_times = serializers.SerializerMethodField()

    class Meta:
        model = Schedule
        fields = (
            "job", "operation", "every_hours", "daily_at", "name", "keep", "blackouts", "owner", "next_at",
            "next_times", "last_operation", "missed_at", "missed_reason",
        )  # fmt: skip

    def get_next_times(self, schedule: Schedule) -> list[datetime]:
        return next_times(schedule, SHOWN_TIMES)


class JobSchedule(ScopedView):
    """A schedule of a job."""

    serializer_class = ScheduleSerializer
    query = frozenset({"operation"})

    @extend_schema(
        parameters=[OpenApiParameter("operation", enum=[kind.value for kind in ScheduledOperation])],
        responses={200: ScheduleSerializer, 404: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        """The schedule of savepoints, or with `operation=drill` that of restore drills; 404 for a job without it."""
        operation = request.query_params.get("operation", ScheduledOperation.SAVEPOINT.value)
        schedule = get_object_or_404(Schedule.objects.filter(job=self.parent(), operation=operation))
        return Response(self.get_serializer(schedule).data)
