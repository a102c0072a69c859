"""Rows as JSON: snake_case, UTC, durations in `_ms`, sizes in `_bytes`. Requests with unknown members are refused."""

from typing import Any, cast

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from console.api.json_schema import without_references
from console.checkpoints.models import ABORTED, Checkpoint, Status
from console.jobs import job_settings, services
from console.jobs.models import Attempt, Job, JobVersion, Pipeline, Run, StandingStage
from console.jobs.promises import promise_of
from console.operations.models import OF_JOB, Operation
from console.operations.selectors import Act, acts
from runtime.core.job.graph import Guarantee
from runtime.redaction import masked, redacted_within


class StrictSerializer(serializers.Serializer[Any]):
    """A request body in which every member means something."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            raise serializers.ValidationError(dict.fromkeys(unknown, "This member is unknown."), code="unknown")
        return super().to_internal_value(data)


class LoginRequest(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(trim_whitespace=False, max_length=4_096)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, help_text="Absent: the token does not end.")


class LoginResponse(serializers.Serializer[Any]):
    token = serializers.CharField()
    expires_at = serializers.DateTimeField(allow_null=True)


class PipelineSerializer(serializers.ModelSerializer[Pipeline]):
    class Meta:
        model = Pipeline
        fields = ("name", "description", "schema", "queries", "error", "updated_at")


class JobRequest(StrictSerializer):
    name = serializers.CharField()
    pipeline = serializers.CharField()
    description = serializers.CharField(required=False, allow_blank=True, default="")


class JobSerializer(serializers.ModelSerializer[Job]):
    latest_run = serializers.IntegerField(read_only=True, allow_null=True, default=None)
    latest_state = serializers.CharField(read_only=True, allow_null=True, default=None)
    newest_version = serializers.IntegerField(read_only=True, allow_null=True, default=None)

    class Meta:
        model = Job
        fields = (
            "id", "name", "pipeline", "description", "created_at", "created_by", "latest_run", "latest_state",
            "newest_version",
        )  # fmt: skip


_SETTINGS = without_references(job_settings.SCHEMA)


@extend_schema_field(_SETTINGS)
class SettingsField(serializers.DictField):
    """The settings of a version, to be given."""


@extend_schema_field(_SETTINGS)
class StoredSettingsField(serializers.JSONField):
    """The settings of a version, with the defaults filled in."""


class VersionRequest(StrictSerializer):
    parallelism = serializers.IntegerField()
    max_parallelism = serializers.IntegerField(required=False, allow_null=True, default=None)
    params = serializers.DictField()
    settings = SettingsField(required=False)


class PromiseSerializer(serializers.Serializer[Any]):
    """What a version promises from end to end: the weakest of its mode, its sources and its sinks."""

    guarantee = serializers.ChoiceField(choices=[guarantee.value for guarantee in Guarantee])
    reasons = serializers.ListField(child=serializers.CharField())


def _schema_of(serializer: serializers.BaseSerializer[Any], version: JobVersion) -> Any:
    """The schema of the parameters of `version`, read once for a list: its rows are of one job."""
    schemas = cast(dict[str, Any], serializer.context).setdefault("schemas", {})
    if version.job_id not in schemas:
        schemas[version.job_id] = services.schema_of(version)
    return schemas[version.job_id]


class VersionSerializer(serializers.ModelSerializer[JobVersion]):
    settings = StoredSettingsField(read_only=True)
    params = serializers.SerializerMethodField(
        help_text="Secrets are masked; a mask that is sent back keeps the secret."
    )
    promise = serializers.SerializerMethodField()

    @extend_schema_field(serializers.DictField())
    def get_params(self, version: JobVersion) -> Any:
        return masked(version.params, _schema_of(self, version))

    @extend_schema_field(PromiseSerializer(allow_null=True))
    def get_promise(self, version: JobVersion) -> Any:
        found = promise_of(version)
        return found and PromiseSerializer(found).data

    class Meta:
        model = JobVersion
        fields = (
            "id", "job", "number", "parallelism", "max_parallelism", "params", "settings", "state", "graph",
            "promise", "error", "created_at", "created_by",
        )  # fmt: skip


class ActSerializer(serializers.Serializer[Act]):
    act = serializers.ChoiceField(choices=[kind.value for kind in OF_JOB])
    enabled = serializers.BooleanField()
    reason = serializers.CharField(allow_blank=True)


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    class Meta:
        model = Attempt
        fields = ("token", "started_at", "ended_at", "outcome", "reason", "detail", "restored_checkpoint")


class StandingStageSerializer(serializers.ModelSerializer[StandingStage]):
    """A PySpark stage that stands beside an operator of the run. `live` is its newest report."""

    live = serializers.JSONField(read_only=True, allow_null=True)

    class Meta:
        model = StandingStage
        fields = ("operator", "verb", "state", "token", "lease_owner", "deaths", "reason", "live", "live_at")


class RunSerializer(serializers.ModelSerializer[Run]):
    """A run as a list shows it: without its live numbers."""

    version_number = serializers.IntegerField(source="version.number", read_only=True)
    failure = serializers.SerializerMethodField()

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_failure(self, run: Run) -> Any:
        return run.failure and redacted_within(run.failure, run.version.params, _schema_of(self, run.version))

    class Meta:
        model = Run
        fields: tuple[str, ...] = (
            "id", "job", "version", "version_number", "parallelism", "state", "restore_checkpoint", "restore_path",
            "allow_unmapped", "token", "lease_owner", "releases", "failure", "created_at", "started_at", "ended_at",
            "created_by",
        )  # fmt: skip


class RunDetailSerializer(RunSerializer):
    """A run with its live numbers, its attempts, and what may be asked of it now."""

    attempts = AttemptSerializer(many=True, read_only=True)
    standing_stages = StandingStageSerializer(many=True, read_only=True)
    acts = serializers.SerializerMethodField()

    class Meta(RunSerializer.Meta):
        fields = (*RunSerializer.Meta.fields, "live", "live_at", "attempts", "standing_stages", "acts")

    @extend_schema_field(ActSerializer(many=True))
    def get_acts(self, run: Run) -> Any:
        newest = Run.objects.filter(job=run.job_id).order_by("-pk").first()
        found = acts(run.job, newest, self.context["request"].user)
        return [ActSerializer(act).data for act in found]


class CheckpointSerializer(serializers.ModelSerializer[Checkpoint]):
    """`ended_at` says when it completed or failed, `completed_at` is there for completed ones only.

    `outcome` tells those that were aborted with their attempt (reason `suspended`) from those that failed.
    """

    completed_at = serializers.SerializerMethodField()
    ended_at = serializers.DateTimeField(source="completed_at", read_only=True, allow_null=True)
    outcome = serializers.ChoiceField(choices=[*(status.value for status in Status), ABORTED], read_only=True)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_completed_at(self, checkpoint: Checkpoint) -> Any:
        ended = self.fields["ended_at"]
        return ended.to_representation(checkpoint.completed_at) if checkpoint.status == Status.COMPLETED else None

    class Meta:
        model = Checkpoint
        fields = (
            "id", "job", "run", "token", "number", "kind", "status", "outcome", "triggered_at", "completed_at",
            "ended_at", "duration_ms",
            "size_bytes", "written_bytes", "acknowledged", "subtasks", "reason", "detail", "path", "operators",
            "finished_operators", "max_parallelism", "discarded_at", "review_state", "review_note", "reviewer",
            "reviewed_at",
        )  # fmt: skip


class OperationRequest(StrictSerializer):
    """`params` of start: {version?, parallelism?, accept_repeated_output?}; of restore these and {checkpoint | path,
    allow_unmapped?}, where `path` is the folder of a savepoint; of the others none.
    """

    kind = serializers.CharField()
    params = serializers.DictField(required=False)
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=1_000)


class OperationSerializer(serializers.ModelSerializer[Operation]):
    class Meta:
        model = Operation
        fields = (
            "id", "job", "run", "kind", "params", "state", "phase", "reason", "requested_by", "request_id",
            "idempotency_key", "created_at", "started_at", "ended_at", "result", "error",
        )  # fmt: skip


class ProblemField(serializers.Serializer[Any]):
    pointer = serializers.CharField()
    code = serializers.CharField()
    detail = serializers.CharField()


class RejectionSerializer(serializers.Serializer[Any]):
    """Why a version was rejected. `field` names the parameter or operator."""

    code = serializers.CharField()
    field = serializers.CharField(allow_blank=True)
    detail = serializers.CharField()


class Problem(serializers.Serializer[Any]):
    """RFC 9457. `run` and `operation`: what stands in the way. `rejection`: of the version that was asked for."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    errors = ProblemField(many=True)  # type: ignore[assignment]  # RFC 9457 extension, shadows a DRF property
    request_id = serializers.CharField()
    run = serializers.IntegerField(required=False)
    operation = serializers.CharField(required=False)
    rejection = RejectionSerializer(required=False)
