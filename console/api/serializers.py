"""Rows as JSON: snake_case, UTC, durations in `_ms`, sizes in `_bytes`. Requests with unknown members are
refused.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from console.accounts.models import all_scopes
from console.api.openapi import inline_references
from console.checkpoints.filters import OUTCOMES
from console.checkpoints.models import Checkpoint, Status
from console.health.facts import RunFacts
from console.health.findings import Level, Verdict
from console.health.housekeeping import encode, verdicts
from console.health.models import JobHealth
from console.jobs import services
from console.jobs.changes import MAX_REASON_LENGTH
from console.jobs.inputs import SETTINGS_SCHEMA
from console.jobs.models import Attempt, Job, JobVersion, Pipeline, ReviewPolicy, Run, StandingStage, choices
from console.operations.legality import AllowedOperation, allowed_operations
from console.operations.models import JOB_OPERATIONS, Maintenance, Operation
from console.operations.selectors import latest_run
from runtime.core.job.graph import Guarantee
from runtime.redaction import mask, redact_json


class StrictSerializer(serializers.Serializer[Any]):
    """A request body without unknown members."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            raise serializers.ValidationError(dict.fromkeys(unknown, "This member is unknown."), code="unknown")
        return super().to_internal_value(data)


class LoginRequest(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(trim_whitespace=False, max_length=4_096)
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="Absent: the token does not expire."
    )
    scopes = serializers.MultipleChoiceField(
        choices=all_scopes(),
        required=False,
        help_text="A token may read, and do what both its scopes and the permissions of its user allow. Default: all.",
    )


class LoginResponse(serializers.Serializer[Any]):
    token = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.DateTimeField(allow_null=True)


class PipelineSerializer(serializers.ModelSerializer[Pipeline]):
    class Meta:
        model = Pipeline
        fields = ("name", "description", "schema", "queries", "error", "updated_at")


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


class FindingSerializer(serializers.Serializer[Any]):
    """A sickness of a run. `rule` names the rule of the console that found it; `since` is when it first did.

    `as_of` is set if newer numbers of the subtasks are overdue: the finding is the last known state, of that time.
    """

    rule = serializers.CharField()
    level = serializers.ChoiceField(choices=[Level.ATTENTION.word, Level.FAILED.word])
    sentence = serializers.CharField()
    remedy = serializers.CharField()
    operator = serializers.CharField(allow_blank=True)
    checkpoint = serializers.IntegerField(allow_null=True)
    since = serializers.DateTimeField()
    as_of = serializers.DateTimeField(allow_null=True, required=False)


class HealthSerializer(serializers.Serializer[Any]):
    """The health of a run. `findings` are the most severe first; `sentence` is that of the first finding, if any."""

    level = serializers.ChoiceField(choices=[level.word for level in Level])
    sentence = serializers.CharField(allow_blank=True)
    since = serializers.DateTimeField(allow_null=True)
    checked_at = serializers.DateTimeField()
    findings = FindingSerializer(many=True)


def _health(found: JobHealth | Verdict, level: Level, checked_at: datetime, findings: Sequence[Any]) -> Any:
    whole = {"level": level.word, "sentence": found.sentence, "since": found.since}
    return HealthSerializer({**whole, "checked_at": checked_at, "findings": findings}).data


class ListedJobSerializer(JobSerializer):
    """A job in the list, with the newest stored health of its runs. It is at most some seconds old."""

    health = serializers.SerializerMethodField()

    @extend_schema_field(HealthSerializer(allow_null=True))
    def get_health(self, job: Job) -> Any:
        stored = getattr(job, "health", None)
        return stored and _health(stored, Level(stored.level), stored.checked_at, stored.findings)

    class Meta(JobSerializer.Meta):
        fields = (*JobSerializer.Meta.fields, "health")


_SETTINGS = inline_references(SETTINGS_SCHEMA)


@extend_schema_field(_SETTINGS)
class SettingsField(serializers.DictField):
    """The settings of a version in a request."""


@extend_schema_field(_SETTINGS)
class StoredSettingsField(serializers.JSONField):
    """The settings of a version, with the defaults filled in."""


class VersionRequest(StrictSerializer):
    parallelism = serializers.IntegerField()
    max_parallelism = serializers.IntegerField(required=False, allow_null=True, default=None)
    params = serializers.DictField()
    settings = SettingsField(required=False)
    message = serializers.CharField(required=False, allow_blank=True, default="")
    skip_if_equal = serializers.BooleanField(
        required=False, default=False, help_text="Return the newest version if it has the same values."
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


class PromiseSerializer(serializers.Serializer[Any]):
    """The end-to-end guarantee of a version: the weakest of its checkpoint mode, its sources and its sinks."""

    guarantee = serializers.ChoiceField(choices=[guarantee.value for guarantee in Guarantee])
    reasons = serializers.ListField(child=serializers.CharField())


def _schema_of(serializer: serializers.BaseSerializer[Any], version: JobVersion) -> Any:
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
        return mask(version.params, _schema_of(self, version))

    class Meta:
        model = JobVersion
        fields = (
            "id", "job", "number", "parallelism", "max_parallelism", "params", "settings", "state", "graph",
            "promise", "error", "message", "created_at", "created_by",
        )  # fmt: skip


class ActSerializer(serializers.Serializer[AllowedOperation]):
    act = serializers.ChoiceField(choices=[kind.value for kind in JOB_OPERATIONS])
    enabled = serializers.BooleanField()
    reason = serializers.CharField(allow_blank=True)


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    class Meta:
        model = Attempt
        fields = ("token", "started_at", "ended_at", "outcome", "reason", "detail", "restored_checkpoint")


class StandingStageSerializer(serializers.ModelSerializer[StandingStage]):
    """A PySpark stage that runs beside an operator. `live` is its newest report."""

    live = serializers.JSONField(read_only=True, allow_null=True)

    class Meta:
        model = StandingStage
        fields = ("operator", "verb", "state", "token", "lease_owner", "deaths", "reason", "live", "live_at")


class RunSerializer(serializers.ModelSerializer[Run]):
    """A run in a list, without live metrics."""

    version_number = serializers.IntegerField(source="version.number", read_only=True)
    failure = serializers.SerializerMethodField()

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_failure(self, run: Run) -> Any:
        return run.failure and redact_json(run.failure, run.version.params, _schema_of(self, run.version))

    class Meta:
        model = Run
        fields: tuple[str, ...] = (
            "id", "job", "version", "version_number", "parallelism", "state", "restore_checkpoint", "restore_path",
            "allow_unmapped", "token", "lease_owner", "releases", "failure", "created_at", "started_at", "ended_at",
            "created_by",
        )  # fmt: skip


class RunDetailSerializer(RunSerializer):
    """A run with its live metrics, its health, its attempts, and the operations that are possible now."""

    attempts = AttemptSerializer(many=True, read_only=True)
    standing_stages = StandingStageSerializer(many=True, read_only=True)
    acts = serializers.SerializerMethodField()
    health = serializers.SerializerMethodField()
    skew = serializers.SerializerMethodField(
        help_text="By uid of an operator: the records of its busiest subtask, divided by the mean of all; 1 is even. "
        "Operators with one subtask or without records have none. Empty unless records flow."
    )

    class Meta(RunSerializer.Meta):
        fields = (
            *RunSerializer.Meta.fields, "live", "live_at", "attempts", "standing_stages", "acts", "health", "skew",
        )  # fmt: skip

    @extend_schema_field(HealthSerializer)
    def get_health(self, run: Run) -> Any:
        """The health now. Rules that hold until a lower limit know the stored findings."""
        facts, verdict = self._assess(run)
        return _health(verdict, verdict.level, facts.now, [encode(finding) for finding in verdict.findings])

    @extend_schema_field(serializers.DictField(child=serializers.FloatField()))
    def get_skew(self, run: Run) -> Any:
        facts, _ = self._assess(run)
        return facts.skew

    def _assess(self, run: Run) -> tuple[RunFacts, Verdict]:
        """The facts and the verdict, read once per run."""
        found = cast(dict[str, Any], self.context).setdefault("assessed", {})
        if run.pk not in found:
            ((_, facts, verdict),) = verdicts([run], timezone.now())
            found[run.pk] = facts, verdict
        assessed: tuple[RunFacts, Verdict] = found[run.pk]
        return assessed

    @extend_schema_field(ActSerializer(many=True))
    def get_acts(self, run: Run) -> Any:
        found = allowed_operations(run.job, latest_run(run.job), self.context["request"].user)
        return [ActSerializer(act).data for act in found]


class CheckpointSerializer(serializers.ModelSerializer[Checkpoint]):
    """`ended_at` is the time of completion or failure; `completed_at` is set for completed checkpoints only.

    `outcome` distinguishes failed checkpoints from aborted (reason `suspended`) and superseded checkpoints.
    """

    completed_at = serializers.SerializerMethodField()
    ended_at = serializers.DateTimeField(source="completed_at", read_only=True, allow_null=True)
    outcome = serializers.ChoiceField(choices=OUTCOMES, read_only=True)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_completed_at(self, checkpoint: Checkpoint) -> Any:
        ended = self.fields["ended_at"]
        return ended.to_representation(checkpoint.completed_at) if checkpoint.status == Status.COMPLETED else None

    class Meta:
        model = Checkpoint
        fields: tuple[str, ...] = (
            "id", "job", "run", "token", "number", "kind", "status", "outcome", "triggered_at", "completed_at",
            "ended_at", "duration_ms", "size_bytes", "written_bytes", "acknowledged", "subtasks", "reason", "detail",
            "path", "operators", "finished_operators", "max_parallelism", "discarded_at", "review_state",
            "review_note", "reviewer", "reviewed_at", "assignee", "concerns", "verified_at", "name", "note",
            "pinned_at", "pinned_by",
        )  # fmt: skip


class CheckpointDetailSerializer(CheckpointSerializer):
    """A checkpoint with the acknowledgements of its subtasks, by operator: a list per number.

    Times are in ms since the trigger (`at_ms`), or durations of phases. Numbers are null while an acknowledgement is
    missing. Subtasks that had ended take no part.
    """

    class Meta(CheckpointSerializer.Meta):
        fields = (*CheckpointSerializer.Meta.fields, "acknowledgements")


class OperationRequest(StrictSerializer):
    """`params` of start: {version?, parallelism?, accept_repeated_output?}. A restore also takes {checkpoint | path,
    allow_unmapped?}, where `path` is the folder of a savepoint. A rescale takes {parallelism?, version?,
    allow_unmapped?, plan_hash?}. Savepoint, stop and drain take {name?, note?, pin?, target?} of their savepoint, and
    with cancel {run?}: the request is refused if another run is the latest by then. Copy takes {checkpoint, target}.
    Discard, pin, unpin and verify take {checkpoint}, label takes {checkpoint, name?, note?}; `checkpoint` is the id of
    a row. Assign takes {checkpoint, user}, comment {checkpoint, text} and review {checkpoint, state, note?}. Schedule
    takes {every_hours | daily_at, operation?, keep?, name?} and unschedule {operation?}, where `operation` is
    "savepoint" or "drill".
    """

    kind = serializers.CharField()
    params = serializers.DictField(required=False)
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_REASON_LENGTH)


class MaintenanceRequest(StrictSerializer):
    reason = serializers.CharField(max_length=MAX_REASON_LENGTH)


class MaintenanceSerializer(serializers.ModelSerializer[Maintenance]):
    started_by = serializers.CharField(source="started_by.username", read_only=True)
    ended_by = serializers.CharField(source="ended_by.username", read_only=True, allow_null=True, default=None)

    class Meta:
        model = Maintenance
        fields = ("id", "reason", "started_at", "started_by", "ended_at", "ended_by")


class OperationPhase(serializers.Serializer[Any]):
    """A phase that the operation has entered. Progress within a phase is in `phase` of the operation only."""

    phase = serializers.CharField()
    at = serializers.DateTimeField()


class OperationSerializer(serializers.ModelSerializer[Operation]):
    phases = OperationPhase(many=True, read_only=True)

    class Meta:
        model = Operation
        fields = (
            "id", "job", "run", "part_of", "kind", "params", "state", "phase", "phases", "reason", "requested_by",
            "request_id", "idempotency_key", "created_at", "started_at", "ended_at", "result", "error",
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
    """RFC 9457. `run` and `operation` block the request; `rejection` belongs to the requested version."""

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
