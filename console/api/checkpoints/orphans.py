"""Orphans in the storage of a job."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.serializers.base import Problem
from console.housekeeping.orphans import MAX_LISTED, find_orphans


class OrphanFolderSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    nbytes = serializers.IntegerField()
    changed_at = serializers.DateTimeField(allow_null=True, help_text="Null: there was no time to read it.")


class MissingCheckpointSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="pk")
    number = serializers.IntegerField()
    kind = serializers.CharField()
    path = serializers.CharField()
    completed_at = serializers.DateTimeField(allow_null=True)


class OrphansSerializer(serializers.Serializer[Any]):
    storage = serializers.CharField(source="root", help_text="The folder of the job in the storage.")
    folders = OrphanFolderSerializer(many=True, help_text=f"Folders that no checkpoint names, at most {MAX_LISTED}.")
    folder_total = serializers.IntegerField()
    missing = MissingCheckpointSerializer(many=True, help_text="Restorable checkpoints without a manifest in storage.")
    missing_total = serializers.IntegerField()
    fault = serializers.CharField(allow_blank=True, help_text="Why the storage cannot be read.")


class CheckpointOrphans(ScopedView):
    """Folders of checkpoints that no row names, and rows whose files are missing. It changes nothing."""

    serializer_class = OrphansSerializer

    @extend_schema(responses={200: OrphansSerializer, 404: Problem})
    def get(self, request: Request, job: int) -> Response:
        return Response(self.get_serializer(find_orphans(self.parent())).data)
