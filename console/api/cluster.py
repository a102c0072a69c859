"""The cluster: places for runs and their holders, the queue, slots by host, storage and versions."""

from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import StrictView
from console.health.readiness import READINESS
from console.pages.cluster import MAX_RUNS, Cluster, read_cluster


class WorkerSerializer(serializers.Serializer[Any]):
    """A Celery worker, which executes a task in each of its places."""

    name = serializers.CharField()
    queues = serializers.ListField(child=serializers.CharField())
    places = serializers.IntegerField()
    busy = serializers.IntegerField()
    free = serializers.IntegerField()


class WorkersSerializer(serializers.Serializer[Any]):
    """The last answer of the workers. `error`: why they could not be asked."""

    at = serializers.DateTimeField()
    error = serializers.CharField(allow_blank=True)
    workers = WorkerSerializer(many=True)


class PlaceSerializer(serializers.Serializer[Any]):
    """A run that a worker has claimed. `supervisor` is "host:pid", empty if the lease of the run is lost."""

    job = serializers.IntegerField(source="run.job_id")
    job_name = serializers.CharField(source="run.job.name")
    run = serializers.IntegerField(source="run.pk")
    state = serializers.CharField(source="run.state")
    supervisor = serializers.CharField(allow_blank=True)
    slots = serializers.IntegerField(help_text="Slots that report.")
    parallelism = serializers.IntegerField(source="run.parallelism")
    seen_at = serializers.DateTimeField(source="run.live_at", allow_null=True)


class WaitingRunSerializer(serializers.Serializer[Any]):
    """A run that waits for a worker (`queued`) or for slots (`waiting`)."""

    job = serializers.IntegerField(source="job_id")
    job_name = serializers.CharField(source="job.name")
    run = serializers.IntegerField(source="pk")
    state = serializers.CharField()
    parallelism = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class StorageSerializer(serializers.Serializer[Any]):
    """A file system by its use. Bytes are null if it cannot be read; `missing`: the folder does not exist yet."""

    label = serializers.CharField()  # type: ignore[assignment]  # shadows a property of DRF
    folder = serializers.CharField()
    free_bytes = serializers.IntegerField(allow_null=True)
    total_bytes = serializers.IntegerField(allow_null=True)
    missing = serializers.BooleanField(source="is_missing")


class ClusterSerializer(serializers.Serializer[Any]):
    """`supervised`: places whose run has a worker. `parts`: what the console needs, as `/readyz` has it."""

    workers = WorkersSerializer(allow_null=True, help_text="Null: the workers have not answered yet.")
    supervised = serializers.IntegerField()
    slots = serializers.IntegerField(help_text="Slots that report, of all runs.")
    standing_stages = serializers.IntegerField(source="stages")
    places = PlaceSerializer(many=True, help_text=f"Newest first, of the newest {MAX_RUNS} active runs.")
    queue = WaitingRunSerializer(many=True, help_text="Oldest first.")
    hosts = serializers.SerializerMethodField(help_text="Slots that report, by host.")
    storage = StorageSerializer(many=True)
    parts = serializers.SerializerMethodField()
    versions = serializers.SerializerMethodField(help_text="Of this console and the packages beside it.")

    @extend_schema_field(serializers.DictField(child=serializers.IntegerField()))
    def get_hosts(self, cluster: Cluster) -> Any:
        return dict(cluster.hosts)

    @extend_schema_field(serializers.DictField(child=serializers.CharField()))
    def get_parts(self, cluster: Cluster) -> Any:
        return {name: part.text for name, part in READINESS.parts().items()}

    @extend_schema_field(serializers.DictField(child=serializers.CharField()))
    def get_versions(self, cluster: Cluster) -> Any:
        return dict(cluster.versions)


class ClusterDetail(StrictView):
    """The numbers of the page of the cluster. The workers are asked in the background: their answer may be older."""

    serializer_class = ClusterSerializer

    @extend_schema(responses={200: ClusterSerializer})
    def get(self, request: Request) -> Response:
        return Response(self.get_serializer(read_cluster()).data)
