"""The evidence pack of a checkpoint, and the check of the seal of a pack."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.refusals import InvalidField
from console.api.base import StrictView
from console.api.serializers.base import Problem
from console.checkpoints.models import Checkpoint
from console.pages.evidence import evidence_pack
from console.pages.evidence_seal import check_seal


class Evidence(StrictView):
    """The manifest of a checkpoint, the last check of its files, its review and its restore drills.

    The operation `verify` checks the files.
    """

    queryset = Checkpoint.objects.select_related("job", "run__version", "reviewer", "assignee", "pinned_by")
    serializer_class = serializers.Serializer

    @extend_schema(responses={200: OpenApiTypes.OBJECT})
    def get(self, request: Request, pk: int) -> Response:
        return Response(evidence_pack(self.get_object(), self.user))


class SealCheckSerializer(serializers.Serializer[Any]):
    """`detail`: why the seal is valid or not."""

    valid = serializers.BooleanField(source="is_valid")
    detail = serializers.CharField()


class EvidenceCheck(StrictView):
    """The check of the seal of an evidence pack. It reads no row: the checkpoint may be of another console."""

    serializer_class = SealCheckSerializer

    @extend_schema(request=OpenApiTypes.OBJECT, responses={200: SealCheckSerializer, 422: Problem})
    def post(self, request: Request) -> Response:
        """Whether the pack in the body is as a console with the same keys made it."""
        if not isinstance(request.data, dict):
            raise InvalidField("body", "must be an evidence pack, a JSON object")
        return Response(self.get_serializer(check_seal(request.data)).data)
