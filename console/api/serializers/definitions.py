"""Pipelines, jobs and versions as JSON, and the requests that define them."""

from collections.abc import Mapping
from typing import Any, cast

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from console.api.json_schemas import inline_references
from console.api.serializers.base import StrictSerializer
from console.api.serializers.health import HealthSerializer, health_of
from console.checkpoints.filters import MAX_BIGINT
from console.health.findings import Verdict
from console.health.verdicts import listed_verdicts, present_verdict
from console.jobs import services
from console.jobs.changes import MAX_REASON_LENGTH
from console.jobs.editing import (
    MAX_LINK_LENGTH,
    MAX_OWNER_LENGTH,
    MAX_SILENCE_S,
    MAX_TAG_LENGTH,
    MAX_TAGS,
    MIN_SILENCE_S,
)
from console.jobs.inputs import SETTINGS_SCHEMA
from console.jobs.masking import mask_settings
from console.jobs.models import Connection, Job, JobVersion, Package, Pipeline, ReviewPolicy, choices
from runtime.access.redaction import mask
from runtime.core.job.graph import Guarantee
from runtime.core.job.key_groups import MAX_KEY_GROUPS


class PipelineSerializer(serializers.ModelSerializer[Pipeline]):
    class Meta:
        model = Pipeline
        fields = ("name", "description", "schema", "queries", "package", "error", "updated_at")


class ListedPackageSerializer(serializers.ModelSerializer[Package]):
    class Meta:
        model = Package
        fields: tuple[str, ...] = (
            "digest", "size", "state", "error", "created_at", "created_by", "used_at",
        )  # fmt: skip


class PackageSerializer(ListedPackageSerializer):
    class Meta(ListedPackageSerializer.Meta):
        fields = (*ListedPackageSerializer.Meta.fields, "description")


class ConnectionSerializer(serializers.ModelSerializer[Connection]):
    options = serializers.DictField(child=serializers.CharField())
    pipelines = serializers.SerializerMethodField(help_text="Pipelines that may use it; * for all.")

    class Meta:
        model = Connection
        fields = ("name", "description", "address", "options", "pipelines", "updated_at")

    def get_pipelines(self, connection: Connection) -> list[str]:
        return connection.pipelines.split()


@extend_schema_field({"type": "integer", "oneOf": [{"const": 0}, {"minimum": MIN_SILENCE_S, "maximum": MAX_SILENCE_S}]})
class SilenceField(serializers.IntegerField):
    """A limit of silence, or 0 for none."""


@extend_schema_field({"type": "string", "pattern": "^[^,]*[^, ][^,]*$", "maxLength": MAX_TAG_LENGTH})
class TagField(serializers.CharField):
    """A tag of a job."""


@extend_schema_field({"type": "string", "pattern": "^(https?://[A-Za-z0-9].*)?$", "maxLength": MAX_LINK_LENGTH})
class LinkField(serializers.CharField):
    """An address, or nothing."""


class JobChange(StrictSerializer):
    """Facts to change; absent facts stay."""

    name = serializers.CharField(required=False, max_length=services.MAX_NAME_LENGTH)
    description = serializers.CharField(required=False, allow_blank=True, max_length=services.MAX_DESCRIPTION_LENGTH)
    owner = serializers.CharField(required=False, allow_blank=True, max_length=MAX_OWNER_LENGTH)
    tags = serializers.ListField(child=TagField(max_length=MAX_TAG_LENGTH), required=False, max_length=MAX_TAGS)
    runbook = LinkField(required=False, allow_blank=True, max_length=MAX_LINK_LENGTH)
    max_silence_s = SilenceField(
        required=False,
        help_text="Seconds without records after which an input is a finding of health; 0: by its history.",
    )
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
            "id", "name", "pipeline", "description", "owner", "tags", "runbook", "max_silence_s", "review_policy",
            "archived_at", "created_at", "created_by", "latest_run", "latest_state", "newest_version",
        )  # fmt: skip


class JobPageSerializer(serializers.ListSerializer[Job]):
    """A page of the list. The verdicts on its jobs are read together."""

    def to_representation(self, data: Any) -> Any:
        jobs: list[Job] = list(data)
        listed = [(job.latest_run, getattr(job, "health", None)) for job in jobs]
        verdicts = listed_verdicts(listed, timezone.now())
        cast(ListedJobSerializer, self.child).verdicts = {
            job.pk: verdict for job, verdict in zip(jobs, verdicts, strict=True)
        }
        return super().to_representation(jobs)


class ListedJobSerializer(JobSerializer):
    """A job in the list, with the stored health of its latest run; null: the job never ran."""

    health = serializers.SerializerMethodField()
    verdicts: Mapping[int, Verdict]

    @extend_schema_field(HealthSerializer(allow_null=True))
    def get_health(self, job: Job) -> Any:
        return None if job.latest_run is None else health_of(self.verdicts[job.pk])

    class Meta(JobSerializer.Meta):
        list_serializer_class = JobPageSerializer
        fields = (*JobSerializer.Meta.fields, "health")


class JobDetailSerializer(JobSerializer):
    """A job with the health of its latest run; null: the job never ran."""

    health = serializers.SerializerMethodField()

    @extend_schema_field(HealthSerializer(allow_null=True))
    def get_health(self, job: Job) -> Any:
        run = job.latest_run
        if run is None:
            return None
        run.job = job
        return health_of(present_verdict(run, timezone.now()))

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
    parallelism = serializers.IntegerField(min_value=1, max_value=MAX_KEY_GROUPS)
    max_parallelism = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=1, max_value=MAX_KEY_GROUPS
    )
    params = serializers.DictField()
    settings = SettingsField(required=False)
    package = serializers.RegexField(
        r"^([0-9a-f]{64})?\Z",
        required=False,
        allow_blank=True,
        help_text="Digest of a package; empty: the installed code. Default: as the newest version, else the newest "
        "package that offers the pipeline.",
    )
    message = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=services.MAX_MESSAGE_LENGTH
    )
    skip_if_equal = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Return the newest version if it has the same values and its package is installed unchanged.",
    )


class JobRequest(StrictSerializer):
    conditions = {
        "oneOf": [
            {"required": ["pipeline"], "not": {"required": ["duplicate_of"]}},
            {"required": ["duplicate_of"], "not": {"anyOf": [{"required": ["pipeline"]}, {"required": ["version"]}]}},
        ]
    }

    name = serializers.CharField(max_length=services.MAX_NAME_LENGTH)
    pipeline = serializers.CharField(required=False)
    description = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=services.MAX_DESCRIPTION_LENGTH
    )
    version = VersionRequest(required=False, help_text="The first version. If it is refused, no job is created.")
    duplicate_of = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_BIGINT,
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
    """The parameter schema of `version`, read once per list for each package, as its rows share a job."""
    schemas = cast(dict[str, Any], serializer.context).setdefault("schemas", {})
    key = version.job_id, version.package_id
    if key not in schemas:
        schemas[key] = services.parameter_schema(version)
    return schemas[key]


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
            "id", "job", "number", "parallelism", "max_parallelism", "params", "settings", "package", "state",
            "graph", "promise", "error", "message", "created_at", "created_by",
        )  # fmt: skip
