"""Checkpoints and savepoints as JSON."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from console.checkpoints.filters import OUTCOMES
from console.checkpoints.lanes import lanes_of
from console.checkpoints.models import Checkpoint, Status
from console.pages.explanations import explanation_of


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
            "id", "job", "run", "token", "number", "kind", "outcome", "triggered_at", "completed_at",
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

    explanation = serializers.SerializerMethodField(
        help_text="Which subtask was slow or is missing, in which phase, and which operator is the cause. Empty "
        "without acknowledgements."
    )

    def get_explanation(self, checkpoint: Checkpoint) -> str:
        operators = (checkpoint.run.version.graph or {}).get("operators", ())
        lanes = lanes_of(checkpoint.acknowledgements, [operator["uid"] for operator in operators])
        return explanation_of(checkpoint, lanes, timezone.now())

    class Meta(CheckpointSerializer.Meta):
        fields = (*CheckpointSerializer.Meta.fields, "acknowledgements", "explanation")
