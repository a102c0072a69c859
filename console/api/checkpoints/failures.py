"""The failures of a job by cause, as its page shows them."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.serializers.base import Problem
from console.jobs.failures import MAX_CAUSES, failure_causes
from console.jobs.services import pipeline_schema


class FailureCauseSerializer(serializers.Serializer[Any]):
    """Failures of attempts with the same code, operator and message, except for numbers. Secrets are masked.

    The facts from `run` on are of the newest failure. `story`: the events before it, oldest first.
    """

    number = serializers.IntegerField(help_text="Failures with this cause.")
    first = serializers.DateTimeField()
    last = serializers.DateTimeField()
    run = serializers.IntegerField()
    attempt = serializers.IntegerField(help_text="Its token.")
    code = serializers.CharField(source="newest.code")
    message = serializers.CharField(source="newest.message")
    operator = serializers.CharField(source="newest.operator", allow_blank=True, help_text="Its name.")
    subtask = serializers.IntegerField(source="newest.subtask", allow_null=True)
    slot = serializers.IntegerField(source="newest.slot", allow_null=True)
    traceback = serializers.CharField(source="newest.traceback", allow_blank=True)
    story = serializers.ListField(source="newest.story", child=serializers.CharField())
    rest = serializers.JSONField(source="newest.rest", allow_null=True, help_text="All other recorded facts.")


class FailureCausesSerializer(serializers.Serializer[Any]):
    causes = FailureCauseSerializer(many=True, help_text=f"Newest first, at most {MAX_CAUSES}.")


class FailureCauses(ScopedView):
    """The failures of the attempts of a job, grouped by cause."""

    serializer_class = FailureCausesSerializer
    query = frozenset({"operator"})

    @extend_schema(
        parameters=[OpenApiParameter("operator", str, description="Uid of an operator: only its failures")],
        responses={200: FailureCausesSerializer, 404: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        of = self.parent()
        causes = failure_causes(of, pipeline_schema(of.pipeline), request.query_params.get("operator", ""))
        return Response(self.get_serializer({"causes": causes}).data)
