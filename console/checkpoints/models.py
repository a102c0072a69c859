"""Checkpoints and savepoints, a row each.

The job master owns every column except the review, the name, the note and the pin. `queries.sql` of the runtime uses
the same table and column names.
"""

from datetime import datetime, timedelta
from enum import StrEnum

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Now

from console.accounts.models import User
from console.jobs.models import Job, Run, choices
from runtime.core.job.key_groups import DEFAULT_MAX_PARALLELISM
from runtime.core.snapshot.failure_reason import FailureReason


class Kind(StrEnum):
    """Why a checkpoint was taken."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    DRAIN = "drain"


def noun(kind: str) -> str:
    """`checkpoint` or `savepoint` for a kind; a stop or drain takes a savepoint."""
    return (Kind.CHECKPOINT if kind == Kind.CHECKPOINT else Kind.SAVEPOINT).value


class Status(StrEnum):
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


#: Reason of a checkpoint that ended with its attempt (cancel, restart or end of the job): no subtask caused a failure.
ABORT_REASON = FailureReason.SUSPENDED
ABORTED = "aborted"
#: Reasons of a checkpoint that a newer checkpoint has replaced.
SUPERSEDED_REASONS = (FailureReason.SUBSUMED, FailureReason.DECLINED_SUBSUMED)
SUPERSEDED = "superseded"
NOT_FAILURES = (ABORT_REASON, *SUPERSEDED_REASONS)  #: of aborted and superseded checkpoints


class QueryState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


QUERY_STATES = choices(QueryState, {QueryState.QUEUED: "Waiting for a worker", QueryState.RUNNING: "Reading"})
CHECKPOINT_KINDS = choices(Kind)
ACTIVE_QUERIES = (QueryState.QUEUED, QueryState.RUNNING)


class ReviewState(StrEnum):
    """State of a review. Retention keeps the files of a checkpoint that is in review."""

    UNREVIEWED = "unreviewed"
    IN_REVIEW = "in_review"
    REVIEWED = "reviewed"
    WAIVED = "waived"


REVIEW_STATES = choices(ReviewState, {ReviewState.UNREVIEWED: "Not reviewed"})


class Concern(StrEnum):
    """Why a checkpoint needs a look. A trigger of Postgres sets the concerns (`CONCERNS` of the migration).

    `slow` and `oversized` compare with the medians of the latest checkpoints of the job, and name the first checkpoint
    of an episode. `unverified` savepoints and pinned checkpoints have had no successful restore drill.
    """

    FAILED = "failed"
    SLOW = "slow"
    OVERSIZED = "oversized"
    UNVERIFIED = "unverified"
    DRAINED = "drained"


CONCERNS = choices(Concern, {Concern.UNVERIFIED: "Not drilled"})  #: pages call files verified that have been checked
#: Checkpoints of the review desk.
NEEDS_REVIEW = Q(concerns__isnull=False, review_state__in=[ReviewState.UNREVIEWED.value, ReviewState.IN_REVIEW.value])


def large_columns(relation: str) -> tuple[str, str]:
    """The large columns of a related checkpoint, for `defer`: `select_related` does not use the manager."""
    return f"{relation}__operators", f"{relation}__acknowledgements"


class CheckpointManager(models.Manager["Checkpoint"]):
    """Rows without their acknowledgements, which only the page of a checkpoint reads."""

    def get_queryset(self) -> models.QuerySet["Checkpoint"]:
        return super().get_queryset().defer("acknowledgements")


class Checkpoint(models.Model):
    """A globally consistent snapshot of a run: in progress, completed or failed. `number` counts within the job."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="checkpoints", db_index=False)  # has wider indexes
    run = models.ForeignKey(Run, models.CASCADE, related_name="checkpoints", db_index=False)
    token = models.BigIntegerField()
    number = models.BigIntegerField()
    kind = models.TextField(choices=CHECKPOINT_KINDS)
    status = models.TextField(choices=choices(Status))
    triggered_at = models.DateTimeField(db_default=Now())
    completed_at = models.DateTimeField(null=True)
    duration_ms = models.BigIntegerField(null=True)
    size_bytes = models.BigIntegerField(null=True)
    written_bytes = models.BigIntegerField(null=True)
    acknowledged = models.IntegerField(default=0, db_default=0)
    subtasks = models.IntegerField(default=0, db_default=0)
    reason = models.TextField(default="", db_default="", blank=True)
    detail = models.TextField(default="", db_default="", blank=True)
    path = models.TextField(default="", db_default="", blank=True)
    operators = models.JSONField(default=list, db_default=Value([], models.JSONField()))
    #: by operator, the subtasks that take part and their acknowledgements (`runtime.core.checkpoint.acknowledgements`)
    acknowledgements = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    finished_operators = models.JSONField(default=list, db_default=Value([], models.JSONField()))
    max_parallelism = models.IntegerField(default=DEFAULT_MAX_PARALLELISM, db_default=DEFAULT_MAX_PARALLELISM)
    discarded_at = models.DateTimeField(null=True)
    review_state = models.TextField(
        choices=REVIEW_STATES, default=ReviewState.UNREVIEWED.value, db_default=ReviewState.UNREVIEWED.value
    )
    review_note = models.TextField(default="", db_default="", blank=True)
    reviewer = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    reviewed_at = models.DateTimeField(null=True)
    assignee = models.ForeignKey(User, models.PROTECT, null=True, related_name="+", db_index=False)
    concerns = ArrayField(models.TextField(choices=CONCERNS), null=True)  #: null: the checkpoint has none
    verified_at = models.DateTimeField(null=True)  #: a restore drill has read the state of all operators but sinks
    name = models.TextField(default="", db_default="", blank=True)  #: given by a user; not unique
    note = models.TextField(default="", db_default="", blank=True)
    pinned_at = models.DateTimeField(null=True)  #: neither retention nor a user discards a pinned checkpoint
    pinned_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    held_by = models.UUIDField(null=True)  #: id of the rollback or drill that will restore it; as a pin meanwhile

    objects = CheckpointManager()

    class Meta:
        db_table = "weir_checkpoint"
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("run", "-number"), name="weir_checkpoint_of_run"),
            models.Index(fields=("run", "token", "number"), name="weir_checkpoint_of_attempt"),
            models.Index(fields=("triggered_at", "id"), name="weir_checkpoint_time"),
            models.Index(
                fields=("run",), condition=Q(status=Status.IN_PROGRESS.value), name="weir_checkpoint_in_progress"
            ),
            # A job has millions of rows after a year; frequent queries need few rows, so the next four are partial.
            models.Index(
                fields=("job", "-number"),
                condition=Q(status=Status.COMPLETED.value, discarded_at=None),
                name="weir_checkpoint_restorable",
            ),
            models.Index(
                fields=("run", "-number"),
                condition=Q(status=Status.COMPLETED.value, discarded_at=None),
                name="weir_checkpoint_of_run_kept",
            ),
            models.Index(
                fields=("job", "-number"), condition=~Q(kind=Kind.CHECKPOINT.value), name="weir_checkpoint_savepoints"
            ),
            models.Index(
                fields=("job", "run", "reason", "id"),
                condition=Q(status=Status.FAILED.value),
                name="weir_checkpoint_failures",
            ),
            models.Index(fields=("job", "run", "status"), name="weir_checkpoint_counts"),
            # Filters of the list of checkpoints (`console.checkpoints.filters`): the wide index answers them in the
            # order of the list, without reading the rows that do not match.
            models.Index(
                fields=("job", "reason", "-number"),
                condition=Q(status=Status.FAILED.value),
                name="weir_checkpoint_reasons",
            ),
            models.Index(
                fields=("job", "-number", "triggered_at", "run", "duration_ms", "size_bytes"),
                name="weir_checkpoint_filters",
            ),
            models.Index(
                fields=("job", "-number"),
                condition=~Q(review_state=ReviewState.UNREVIEWED.value),
                name="weir_checkpoint_reviews",
            ),
            models.Index(fields=("job", "-number"), condition=~Q(name=""), name="weir_checkpoint_names"),
            models.Index(
                fields=("job", "-number"), condition=Q(pinned_at__isnull=False), name="weir_checkpoint_pinned"
            ),
            models.Index(fields=("-id",), condition=NEEDS_REVIEW, name="weir_checkpoint_to_review"),
            models.Index(fields=("job", "-id"), condition=NEEDS_REVIEW, name="weir_checkpoint_job_review"),
            models.Index(fields=("assignee", "-id"), condition=NEEDS_REVIEW, name="weir_checkpoint_assigned"),
            GinIndex(fields=("concerns",), condition=NEEDS_REVIEW, name="weir_checkpoint_concerns"),
        ]
        constraints = [
            models.UniqueConstraint(fields=("job", "number"), name="weir_checkpoint_number"),
            models.CheckConstraint(condition=Q(kind__in=[kind.value for kind in Kind]), name="weir_checkpoint_kind"),
            models.CheckConstraint(
                condition=Q(status__in=[status.value for status in Status]), name="weir_checkpoint_status"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.noun} {self.number}"

    @property
    def noun(self) -> str:
        return noun(self.kind)

    @property
    def kind_words(self) -> str:
        """The noun, with the operation that took the savepoint: savepoint (stop)."""
        return f"{self.noun} ({self.kind})" if self.kind in (Kind.STOP, Kind.DRAIN) else self.noun

    @property
    def outcome(self) -> str:
        """The status for people, which distinguishes `aborted` and `superseded` from `failed`."""
        if self.status == Status.FAILED and self.reason == ABORT_REASON:
            return ABORTED
        return SUPERSEDED if self.status == Status.FAILED and self.reason in SUPERSEDED_REASONS else str(self.status)

    @property
    def outcome_words(self) -> str:
        """The outcome as the rest of a sentence: has failed, is in progress, was aborted."""
        if self.outcome == Status.IN_PROGRESS:
            return "is in progress"
        return "has failed" if self.outcome == Status.FAILED else f"was {self.outcome}"

    def took_ms(self, now: datetime) -> float:
        """Time from the trigger to the end, or until now."""
        if self.duration_ms is not None:
            return float(self.duration_ms)
        return max(0.0, ((self.completed_at or now) - self.triggered_at) / timedelta(milliseconds=1))

    @property
    def is_pinned(self) -> bool:
        return self.pinned_at is not None

    @property
    def is_restorable(self) -> bool:
        """Whether the checkpoint has completed and its files still exist."""
        return self.status == Status.COMPLETED and self.discarded_at is None


def state_title(operator: str, state: str) -> str:
    return f"state of {operator}" if state == "state" else f"state {state} of {operator}"


class StateQuery(models.Model):
    """A query on the state of a checkpoint: a page of the rows of a state, or SQL saved with the pipeline.

    A task of the queue `stages` claims it, runs a PySpark stage, and renews `beat_at` each second. `request` is the
    input of the stage and `result` its table, both in the format of `spark_jobs.state.query`.
    """

    id = models.BigAutoField(primary_key=True)
    checkpoint = models.ForeignKey(Checkpoint, models.CASCADE, related_name="state_queries")
    request = models.JSONField()
    state = models.TextField(choices=QUERY_STATES, default=QueryState.QUEUED.value, db_default="queued")
    owner = models.TextField(default="", db_default="", blank=True)
    beat_at = models.DateTimeField(db_default=Now())
    losses = models.IntegerField(default=0, db_default=0)  #: number of tasks that were lost while they owned the query
    progress = models.JSONField(null=True)
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)
    requested_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "weir_state_query"
        ordering = ("-id",)
        indexes = [
            models.Index(
                fields=("id",),
                condition=Q(state__in=[state.value for state in ACTIVE_QUERIES]),
                name="weir_state_query_active",
            ),
            models.Index(fields=("ended_at",), name="weir_state_query_ended"),
        ]

    def __str__(self) -> str:
        return f"query {self.pk}"

    @property
    def title(self) -> str:
        """The name of the saved SQL, or state and operator, such as "state panes of window"."""
        request = self.request
        return str(request["name"]) if request["kind"] == "sql" else state_title(request["operator"], request["state"])

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_QUERIES
