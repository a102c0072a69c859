"""The health of a run as JSON."""

from typing import Any

from rest_framework import serializers

from console.health.findings import Level, Verdict
from console.health.words import UNKNOWN
from runtime.core.job.lifecycle import RunState


class FindingSerializer(serializers.Serializer[Any]):
    """A sickness of a run. `rule` names the rule of the console that found it; `since` is when it first did.

    `as_of` is set if newer numbers of the subtasks are overdue: the finding is the last known state, of that time.
    """

    rule = serializers.CharField()
    level = serializers.ChoiceField(choices=[Level.ATTENTION.word, Level.FAILED.word], source="level.word")
    sentence = serializers.CharField()
    remedy = serializers.CharField()
    act = serializers.CharField(allow_blank=True, help_text="The operation that helps; empty if none does.")
    operator = serializers.CharField(allow_blank=True)
    checkpoint = serializers.IntegerField(allow_null=True)
    since = serializers.DateTimeField()
    as_of = serializers.DateTimeField(allow_null=True, required=False)


class SilentInputSerializer(serializers.Serializer[Any]):
    """A source that sends no records now. `operator` is its uid."""

    operator = serializers.CharField()
    since = serializers.DateTimeField()


class HealthSerializer(serializers.Serializer[Any]):
    """The health of a run in the state that it judges. Pages, the command line and the metrics show the same.

    `findings` are the most severe first; `sentence`, `remedy`, `act` and `operator` are those of the first, if any.
    """

    state = serializers.ChoiceField(choices=[state.value for state in RunState])
    word = serializers.CharField(help_text="State and health, as the pages show them.")
    level = serializers.ChoiceField(
        choices=[*(level.word for level in Level), UNKNOWN], source="health",
        help_text="`unknown`: no pass of the console's worker has checked the run for long, and it was well before.",
    )  # fmt: skip
    sentence = serializers.CharField(allow_blank=True)
    remedy = serializers.CharField(allow_blank=True, default="", source="cause.remedy")
    act = serializers.CharField(allow_blank=True, default="", source="cause.act")
    operator = serializers.CharField(allow_blank=True, default="", source="cause.operator")
    since = serializers.DateTimeField(allow_null=True)
    checked_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the verdict. null: nothing has checked the run in this state yet."
    )
    is_old = serializers.BooleanField(
        help_text="No pass of the console's worker has checked the run for long: this is the last known verdict."
    )
    findings = FindingSerializer(many=True)
    silent_inputs = SilentInputSerializer(
        many=True, help_text="Sources that send no records now: a fact, which is a finding after a limit of the job."
    )


def health_of(verdict: Verdict) -> Any:
    return HealthSerializer(verdict).data
