"""Runs as JSON, with their attempts, standing stages and possible operations."""

from functools import partial
from typing import Any, cast

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from console.api.serializers.definitions import schema_of
from console.api.serializers.health import HealthSerializer, health_of
from console.health.facts import RunFacts
from console.health.findings import Verdict
from console.health.verdicts import verdict_with_facts
from console.jobs.models import Attempt, Run, StandingStage
from console.operations.legality import AllowedOperation, allowed_operations
from console.operations.operation_type import JobOperation
from console.operations.registry import types_of
from console.pages.run_ends import end_of_run, ending_operation
from console.runs.selectors import latest_run
from runtime.access.redaction import redact_failure, redact_json


class ActSerializer(serializers.Serializer[AllowedOperation]):
    act = serializers.ChoiceField(choices=[each.kind.value for each in types_of(JobOperation)])
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
        if not run.failure:
            return run.failure
        redact = partial(redact_json, params=run.version.params, schema=schema_of(self, run.version))
        return redact_failure(run.failure, redact)

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

    end = serializers.SerializerMethodField(help_text="Why the run ended, in words; empty while it is active.")

    class Meta(RunSerializer.Meta):
        fields = (
            *RunSerializer.Meta.fields, "live", "live_at", "attempts", "standing_stages", "acts", "health", "skew",
            "end",
        )  # fmt: skip

    def get_end(self, run: Run) -> str:
        schema = schema_of(self, run.version) if run.is_terminal else {}  # two queries
        return end_of_run(run, ending_operation(run), schema)

    @extend_schema_field(HealthSerializer)
    def get_health(self, run: Run) -> Any:
        return health_of(self._assess(run)[0])

    @extend_schema_field(serializers.DictField(child=serializers.FloatField()))
    def get_skew(self, run: Run) -> Any:
        return self._assess(run)[1].skew

    def _assess(self, run: Run) -> tuple[Verdict, RunFacts]:
        """The verdict and the facts, read once per run."""
        cache = cast(dict[str, Any], self.context).setdefault("assessed", {})
        if run.pk not in cache:
            cache[run.pk] = verdict_with_facts(run, timezone.now())
        assessed: tuple[Verdict, RunFacts] = cache[run.pk]
        return assessed

    @extend_schema_field(ActSerializer(many=True))
    def get_acts(self, run: Run) -> Any:
        acts: Any = allowed_operations(run.job, latest_run(run.job), self.context["request"].user)
        return ActSerializer(acts, many=True).data
