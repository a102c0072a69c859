"""Checkpoint statistics of a job."""

from dataclasses import fields
from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.json_schemas import integer_from
from console.api.parsing import whole_number
from console.api.serializers.base import Problem
from console.api.serializers.checkpoints import CheckpointSerializer
from console.api.serializers.runs import AttemptSerializer
from console.checkpoints import selectors
from console.checkpoints.filters import MAX_BIGINT
from console.checkpoints.models import CHECKPOINT_KINDS
from console.jobs.models import Job, Run
from console.pages.restore_points import oldest_restorable, read_restore_point


class CountsSerializer(serializers.Serializer[Any]):
    triggered = serializers.IntegerField()
    in_progress = serializers.IntegerField()
    completed = serializers.IntegerField()
    failed = serializers.IntegerField()
    aborted = serializers.IntegerField(help_text="Ended with their attempt (reason `suspended`); not in `failed`.")
    superseded = serializers.IntegerField(help_text="Replaced by a newer checkpoint; not in `failed`.")
    restored = serializers.IntegerField()


class SpreadSerializer(serializers.Serializer[Any]):
    least = serializers.FloatField()
    mean = serializers.FloatField()
    p50 = serializers.FloatField()
    p90 = serializers.FloatField()
    p95 = serializers.FloatField()
    p99 = serializers.FloatField()
    most = serializers.FloatField()


class SummarySerializer(serializers.Serializer[Any]):
    checkpoints = serializers.IntegerField(help_text="Number of latest completed checkpoints summarised.")
    duration_ms = SpreadSerializer()
    state_bytes = SpreadSerializer()
    written_bytes = SpreadSerializer()
    alignment_ms = SpreadSerializer()


class FailuresSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField()
    number = serializers.IntegerField(help_text="Number of failures.")
    counted = serializers.BooleanField(help_text="Whether they count towards tolerable_failed_checkpoints.")
    newest = CheckpointSerializer()


class RestorePointSerializer(serializers.Serializer[Any]):
    """A checkpoint or savepoint with files that the policy of its job allows to restore."""

    id = serializers.IntegerField(source="pk")
    number = serializers.IntegerField()
    kind = serializers.ChoiceField(choices=CHECKPOINT_KINDS)
    triggered_at = serializers.DateTimeField()


class StatisticsSerializer(serializers.Serializer[Any]):
    counts = CountsSerializer()
    summary = SummarySerializer(allow_null=True)
    failures = FailuresSerializer(many=True)
    latest_completed = CheckpointSerializer(allow_null=True)
    latest_savepoint = CheckpointSerializer(allow_null=True)
    latest_failed = CheckpointSerializer(allow_null=True)
    latest_restored = AttemptSerializer(allow_null=True)
    oldest_restore_point = RestorePointSerializer(allow_null=True, help_text="Of the job, also with `?run=`.")


class CheckpointStatistics(ScopedView):
    """Counts, the latest checkpoint of each kind, the oldest restore point, distributions of durations and sizes, and
    failures by reason.
    """

    serializer_class = StatisticsSerializer
    query = frozenset({"run"})

    @extend_schema(
        parameters=[OpenApiParameter("run", integer_from(0), description="Of this run only")],
        responses={200: StatisticsSerializer, 404: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        """Statistics of the job, or with `?run=` of that run."""
        of: Any = get_object_or_404(Job.objects.annotate(oldest_point=oldest_restorable()), pk=job)
        run = request.query_params.get("run")
        row = None if run is None else get_object_or_404(Run, pk=whole_number("run", run, MAX_BIGINT), job=of)
        statistics = selectors.statistics(of, row)
        body = {field.name: getattr(statistics, field.name) for field in fields(statistics)}
        body["oldest_restore_point"] = read_restore_point(of.oldest_point)
        return Response(self.get_serializer(body).data)
