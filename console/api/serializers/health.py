"""The health of a run as JSON."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rest_framework import serializers

from console.health.findings import Level, Verdict
from console.health.models import JobHealth


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


def health_of(verdict: JobHealth | Verdict, level: Level, checked_at: datetime, findings: Sequence[Any]) -> Any:
    facts = {"level": level.word, "sentence": verdict.sentence, "since": verdict.since}
    return HealthSerializer({**facts, "checked_at": checked_at, "findings": findings}).data
