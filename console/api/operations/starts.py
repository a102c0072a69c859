"""The phases of the start of a run, as its page shows them."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import StrictView
from console.api.serializers.base import Problem
from console.jobs.models import Run
from console.pages.start_phases import EARLIER_RUNS, start_moments, start_phases


class StartPhaseSerializer(serializers.Serializer[Any]):
    """A phase that the start has completed."""

    phase = serializers.CharField(
        source="key",
        help_text="queue, inputs, spark, slots, restore, records, first; queue, deploy, first without recorded times.",
    )
    description = serializers.CharField(source="label")
    took_ms = serializers.FloatField()
    expected_ms = serializers.FloatField(
        allow_null=True, help_text=f"Median of up to {EARLIER_RUNS} earlier runs of the job; null without any."
    )


class StartSerializer(serializers.Serializer[Any]):
    phases = StartPhaseSerializer(many=True, help_text="In their order.")


class RunStart(StrictView, generics.GenericAPIView[Run]):
    """The phases between the request of a run and its first checkpoint."""

    queryset = Run.objects.defer("live")
    serializer_class = StartSerializer

    @extend_schema(responses={200: StartSerializer, 404: Problem})
    def get(self, request: Request, pk: int) -> Response:
        phases = start_phases(*start_moments(self.get_object()))
        return Response(self.get_serializer({"phases": phases}).data)
