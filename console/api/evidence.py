"""The evidence pack of a checkpoint."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import StrictView
from console.checkpoints.models import Checkpoint
from console.operations.evidence import evidence_pack


class Evidence(StrictView):
    """The manifest of a checkpoint, the last check of its files, its review and its restore drills.

    The operation `verify` checks the files.
    """

    queryset = Checkpoint.objects.select_related("job", "run__version", "reviewer", "assignee", "pinned_by")
    serializer_class = serializers.Serializer

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request, pk: int) -> Response:
        return Response(evidence_pack(self.get_object(), self.user))
