"""The schedule of a job's savepoints. Operations `schedule` and `unschedule` change it."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.serializers import Problem
from console.operations.models import SavepointSchedule


class ScheduleSerializer(serializers.ModelSerializer[SavepointSchedule]):
    """Either `every_hours` or `daily_at` (UTC) is set. `missed_at`: the last time without a savepoint, and why."""

    class Meta:
        model = SavepointSchedule
        fields = (
            "job", "every_hours", "daily_at", "name", "keep", "owner", "next_at", "last_operation", "missed_at",
            "missed_reason",
        )  # fmt: skip


class Schedule(ScopedView):
    """The schedule of the savepoints of a job."""

    serializer_class = ScheduleSerializer

    @extend_schema(responses={200: ScheduleSerializer, 404: Problem})
    def get(self, request: Request, job: int) -> Response:
        """The schedule; 404 for a job without one."""
        found = get_object_or_404(SavepointSchedule.objects.filter(job=self.parent()))
        return Response(self.get_serializer(found).data)
