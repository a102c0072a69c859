"""Incidents, their findings, notes and alerts as JSON."""

from typing import Any, Final

from rest_framework import serializers

from console.alerts.models import Delivery
from console.alerts.services import MAX_SILENCE_HOURS
from console.api.serializers.base import StrictSerializer
from console.api.serializers.health import FindingSerializer
from console.health.findings import Level
from console.incidents.models import Incident, IncidentFinding, IncidentNote
from console.incidents.services import MAX_NOTE_LENGTH

_LEVELS: Final = f"`{Level.ATTENTION.word}` or `{Level.FAILED.word}`"


class IncidentSerializer(serializers.ModelSerializer[Incident]):
    """A time in which a job was not well. `cause`: the first finding of the newest verdict that was not well.

    `well_since`: the verdict has been well since then; the incident ends if it stays so. `closed_at`: its end.
    """

    job_name = serializers.CharField(source="job.name")
    run = serializers.IntegerField(source="run_id")
    level = serializers.CharField(source="level_word", help_text=_LEVELS)
    cause = FindingSerializer(source="finding")
    taken_by = serializers.CharField(source="taken_by.username", default=None, allow_null=True)

    class Meta:
        model = Incident
        fields = (
            "id", "job", "job_name", "run", "level", "cause", "operator_name", "opened_at", "well_since", "closed_at",
            "taken_by", "taken_at",
        )  # fmt: skip


class IncidentFindingSerializer(serializers.ModelSerializer[IncidentFinding]):
    """A finding of an incident. `level`: the highest so far. `returns`: how often it came back after its end."""

    level = serializers.SerializerMethodField(help_text=_LEVELS)
    sentence = serializers.CharField()

    class Meta:
        model = IncidentFinding
        fields = (
            "rule", "operator", "level", "first_sentence", "sentence", "since", "worsened_at", "ended_at", "returns",
        )  # fmt: skip

    def get_level(self, row: IncidentFinding) -> str:
        return Level(row.level).word


class IncidentNoteSerializer(serializers.ModelSerializer[IncidentNote]):
    created_by = serializers.CharField(source="created_by.username")

    class Meta:
        model = IncidentNote
        fields = ("kind", "text", "created_by", "created_at")


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """An alert. `id` is part of the message. `error` is of the newest try that failed."""

    channel = serializers.CharField(source="channel.name")

    class Meta:
        model = Delivery
        fields = ("id", "channel", "event", "created_at", "delivered_at", "tries", "error")


class IncidentDetailSerializer(IncidentSerializer):
    """An incident with its findings, the newest notes and the newest alerts."""

    findings = IncidentFindingSerializer(many=True)
    notes = IncidentNoteSerializer(many=True, source="newest_notes")
    alerts = DeliverySerializer(many=True, source="newest_deliveries")

    class Meta(IncidentSerializer.Meta):
        fields = (*IncidentSerializer.Meta.fields, "findings", "notes", "alerts")  # type: ignore[assignment]


class NoteRequest(StrictSerializer):
    text = serializers.CharField(max_length=MAX_NOTE_LENGTH)


class SilenceRequest(StrictSerializer):
    hours = serializers.IntegerField(min_value=1, max_value=MAX_SILENCE_HOURS)


class SilenceSerializer(serializers.Serializer[Any]):
    """Until then, no alert of the job is added."""

    job = serializers.IntegerField(source="job_id")
    until = serializers.DateTimeField()
