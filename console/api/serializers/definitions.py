"""Pipelines, jobs and versions as JSON, and the requests that define them."""

from typing import Any, cast

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from console.api.openapi import inline_references
from console.api.serializers.base import StrictSerializer
from console.api.serializers.health import HealthSerializer, health_of
from console.health.findings import Level
from console.jobs import services
from console.jobs.changes import MAX_REASON_LENGTH
from console.jobs.inputs import SETTINGS_SCHEMA
from console.jobs.masking import mask_settings
from console.jobs.models import Connection, Job, JobVersion, Pipeline, ReviewPolicy, choices
from runtime.access.redaction import mask
from runtime.core.job.graph import Guarantee


class PipelineSerializer(serializers.ModelSerializer[Pipeline]):
    class Meta:
        model = Pipeline
        fields = ("name", "description", "schema", "queries", "error", "updated_at")


class ConnectionSerializer(serializers.ModelSerializer[Connection]):
    options = serializers.DictField(child=serializers.CharField())
    pipelines = serializers.SerializerMethodField(help_text="Pipelines that may use it; * for all.")

    class Meta:
        model = Connection
        fields = ("name", "description", "address", "options", "pipelines", "updated_at")

    def get_pipelines(self, connection: Connection) -> list[str]:
        return connection.pipelines.split()


class JobChange(StrictSerializer):
    """Facts to change; absent facts stay."""

    name = serializers.CharField(required=False)
    description = serializers.CharField(required=False, allow_blank=True)
    owner = serializers.CharField(required=False, allow_blank=True)
    tags = serializers.ListField(child=serializers.CharField(), required=False)
    runbook = serializers.CharField(required=False, allow_blank=True)
    review_policy = serializers.ChoiceField(
        choices=choices(ReviewPolicy), required=False, help_text="Effect of a restore from a snapshot without review."
    )
    archived = serializers.BooleanField(required=False)
    reason = serializers.CharField(
        required=False, allow_blank=True, max_length=MAX_REASON_LENGTH, help_text="Why, for the ledger of operations."
    )


class JobSerializer(serializers.ModelSerializer[Job]):
    latest_run = serializers.IntegerField(source="run_pk", read_only=True, allow_null=True, default=None)
    latest_state = serializers.CharField(source="run_state", read_only=True, allow_null=True, default=None)
    newest_version = serializers.IntegerField(read_only=True, allow_null=True, default=None)

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            "id", "name", "pipeline", "description", "owner", "tags", "runbook", "review_policy", "archived_at",
            "created_at", "created_by", "latest_run", "latest_state", "newest_version",
        )  # fmt: skip


class ListedJobSerializer(JobSerializer):
    """A job in the list, with the newest stored health of its runs. It is at most some seconds old."""

    health = serializers.SerializerMethodField()

    @extend_schema_field(HealthSerializer(allow_null=True))
    def get_health(self, job: Job) -> Any:
        stored = getattr(job, "health", None)
        return stored and health_of(stored, Level(stored.level), stored.checked_at, stored.findings)

    class Meta(JobSerializer.Meta):
        fields = (*JobSerializer.Meta.fields, "health")


_SETTINGS = inline_references(SETTINGS_SCHEMA)


@extend_schema_field(_SETTINGS)
class SettingsField(serializers.DictField):
    """The settings of a version in a request."""


@extend_schema_field(_SETTINGS)
class StoredSettingsField(serializers.JSONField):
    """The settings of a version, with the defaults filled in. Values of unlisted Spark settings are masked."""

    def to_representation(self, value: Any) -> Any:
        return super().to_representation(mask_settings(value))


class VersionRequest(StrictSerializer):
    parallelism = serializers.IntegerField()
    max_parallelism = serializers.IntegerField(required=False, allow_null=True, default=None)
    params = serializers.DictField()
    settings = SettingsField(required=False)
    message = serializers.CharField(required=False, allow_blank=True, default="")
    skip_if_equal = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Return the newest version if it has the same values and its package is installed unchanged.",
    )


class JobRequest(StrictSerializer):
    name = serializers.CharField()
    pipeline = serializers.CharField(required=False)
    description = serializers.CharField(required=False, allow_blank=True, default="")
    version = VersionRequest(required=False, help_text="The first version. If it is refused, no job is created.")
    duplicate_of = serializers.IntegerField(
        required=False,
        help_text="Id of a version whose definition the job gets, without state, in place of `pipeline` and `version`.",
    )
    start = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Start the first version once it is compiled. If the start is refused, no job is created.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "duplicate_of" not in attrs and "pipeline" not in attrs:
            raise serializers.ValidationError({"pipeline": "This field is required."}, code="required")
        for name in ("pipeline", "version"):
            if "duplicate_of" in attrs and name in attrs:
                raise serializers.ValidationError({name: "This field must not be given beside `duplicate_of`."})
        return attrs


class DifferenceSerializer(serializers.Serializer[Any]):
    """A value that differs. Secrets are masked; null: the value is absent."""

    part = serializers.ChoiceField(choices=["parameter", "setting", "parallelism", "operator", "version"])
    name = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class DifferencesSerializer(serializers.Serializer[Any]):
    """The changes that a version would make to the newest version of its job."""

    differences = DifferenceSerializer(many=True)


class VersionDifferencesSerializer(serializers.Serializer[Any]):
    """The changes between two versions of a job, by their numbers."""

    base = serializers.IntegerField()
    other = serializers.IntegerField()
    differences = DifferenceSerializer(many=True)


class PromiseSerializer(serializers.Serializer[Any]):
    """The end-to-end guarantee of a version: the weakest of its checkpoint mode, its sources and its sinks."""

    guarantee = serializers.ChoiceField(choices=[guarantee.value for guarantee in Guarantee])
    reasons = serializers.ListField(child=serializers.CharField())


def schema_of(serializer: serializers.BaseSerializer[Any], version: JobVersion) -> Any:
    """The parameter schema of `version`, read once per list, whose rows share a job."""
    schemas = cast(dict[str, Any], serializer.context).setdefault("schemas", {})
    if version.job_id not in schemas:
        schemas[version.job_id] = services.parameter_schema(version)
    return schemas[version.job_id]


class VersionSerializer(serializers.ModelSerializer[JobVersion]):
    settings = StoredSettingsField(read_only=True)
    params = serializers.SerializerMethodField(help_text="Secrets are masked; sending a mask back keeps the secret.")
    promise = PromiseSerializer(source="guarantee", read_only=True, allow_null=True)

    @extend_schema_field(serializers.DictField())
    def get_params(self, version: JobVersion) -> Any:
        return mask(version.params, schema_of(self, version))

    class Meta:
        model = JobVersion
        fields = (
            "id", "job", "number", "parallelism", "max_parallelism", "params", "settings", "state", "graph",
            "promise", "error", "message", "created_at", "created_by",
        )  # fmt: skip
