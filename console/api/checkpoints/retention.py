"""Preview of a retention policy."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.json_schemas import integer_from
from console.api.parsing import number_between
from console.api.serializers.base import Problem
from console.pages.retention import MAX_HOURS, MAX_KEEP, preview_retention
from runtime.core.job.settings import RetentionPolicy


class DiscardedSerializer(serializers.Serializer[Any]):
    """A checkpoint that would be discarded. Bytes of a file that several of them share count for the oldest."""

    id = serializers.IntegerField(source="checkpoint.pk")
    number = serializers.IntegerField(source="checkpoint.number")
    freed_bytes = serializers.IntegerField(allow_null=True)
    shared_bytes = serializers.IntegerField(help_text="Size of its files that stay.")
    needed_by = serializers.IntegerField(allow_null=True, help_text="Number of the newest checkpoint that needs them.")


class KeptSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="checkpoint.pk")
    number = serializers.IntegerField(source="checkpoint.number")
    kind = serializers.CharField(source="checkpoint.kind")
    reasons = serializers.ListField(child=serializers.CharField(), help_text="Why it stays, in sentences.")


class RetentionSerializer(serializers.Serializer[Any]):
    keep = serializers.IntegerField(source="policy.keep")
    hours = serializers.IntegerField(source="policy.hours", allow_null=True)
    present_keep = serializers.IntegerField(source="present.keep", help_text="Of the latest run.")
    present_hours = serializers.IntegerField(source="present.hours", allow_null=True)
    sentence = serializers.CharField()
    freed_bytes = serializers.IntegerField(allow_null=True)
    unknown = serializers.CharField(allow_blank=True, help_text="Why the freed bytes are not known.")
    discarded = DiscardedSerializer(many=True)
    kept = KeptSerializer(many=True)


class Retention(ScopedView):
    """Checkpoints of a job that a retention policy would discard now, and the reasons why the others stay."""

    serializer_class = RetentionSerializer
    query = frozenset({"keep", "hours"})

    @extend_schema(
        parameters=[
            OpenApiParameter("keep", integer_from(1, MAX_KEEP), description="Newest checkpoints to keep"),
            OpenApiParameter(
                "hours",
                integer_from(1, MAX_HOURS),
                description="Keep those of these last hours too; only with `keep`",
            ),
        ],
        responses={200: RetentionSerializer, 404: Problem, 422: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        """The preview for `keep` and `hours`; by default for the policy of the job. It changes nothing."""
        of, keep, hours = self.parent(), request.query_params.get("keep"), request.query_params.get("hours")
        policy = None
        if keep is not None or hours is not None:
            policy = RetentionPolicy(
                number_between("keep", keep or "", 1, MAX_KEEP),
                None if hours is None else number_between("hours", hours, 1, MAX_HOURS),
            )
        return Response(self.get_serializer(preview_retention(of, policy)).data)
