"""Operations as rows: the request, its user and its outcome. The row exists before anything happens."""

import uuid
from enum import StrEnum

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Now

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, Run, choices


class OperationKind(StrEnum):
    START = "start"
    RESTORE = "restore"
    RESCALE = "rescale"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    DRAIN = "drain"
    CANCEL = "cancel"
    DISCARD = "discard"
    PIN = "pin"
    UNPIN = "unpin"
    LABEL = "label"
    SCHEDULE = "schedule"
    UNSCHEDULE = "unschedule"
    CLONE = "clone"
    DRILL = "drill"
    VERIFY = "verify"
    COPY = "copy"
    ASSIGN = "assign"
    COMMENT = "comment"
    REVIEW = "review"
    EDIT = "edit"
    DEFINE = "define"


class ScheduledOperation(StrEnum):
    """Operations that a schedule requests."""

    SAVEPOINT = OperationKind.SAVEPOINT.value
    DRILL = OperationKind.DRILL.value


class OperationState(StrEnum):
    """State of an operation. `unknown`: its master died, and no record shows the outcome."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


OPERATION_STATES = choices(OperationState, {OperationState.RUNNING: "In progress"})
OPERATION_KINDS = choices(OperationKind)
ACTIVE_STATES = (OperationState.QUEUED, OperationState.RUNNING)
_ACTIVE_VALUES = [state.value for state in ACTIVE_STATES]


def operation_kinds() -> list[tuple[str, str]]:
    """The choices of a kind. A function, so that a further kind needs no migration."""
    return OPERATION_KINDS


class Operation(models.Model):
    """An operation. The run's job master ends savepoints, stops, drains and cancels; the console ends all others.

    A trigger refuses changes and the deletion of operations that have succeeded or failed (`FINAL` of the migration).
    `part_of`: a rescale consists of a stop and a restore, and a rollback of a stop or cancel and a restore. A
    savepoint, stop or drain with a target folder has a copy as its part.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    job = models.ForeignKey(Job, models.CASCADE, related_name="operations")
    run = models.ForeignKey(Run, models.CASCADE, null=True, related_name="operations")
    part_of = models.ForeignKey("self", models.CASCADE, null=True, related_name="parts")
    kind = models.TextField(choices=operation_kinds)
    params = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    state = models.TextField(choices=OPERATION_STATES, default=OperationState.QUEUED.value, db_default="queued")
    phase = models.TextField(default="", db_default="", blank=True)
    #: entered so far, with their times; a trigger writes them (`PHASES` of the migration)
    phases = models.JSONField(db_default=Value([], models.JSONField()))
    reason = models.TextField(default="", db_default="", blank=True)
    requested_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    request_id = models.TextField(default="", db_default="", blank=True)
    idempotency_key = models.TextField(null=True, blank=True)
    body_hash = models.TextField(default="", db_default="", blank=True)
    token = models.BigIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)
    error = models.JSONField(null=True)

    class Meta:
        db_table = "weir_operation"
        ordering = ("-created_at", "-id")
        indexes = [
            models.Index(fields=("job", "-created_at"), name="weir_operation_of_job"),
            models.Index(fields=("-created_at", "-id"), name="weir_operation_newest"),
            models.Index(
                fields=("job", "-created_at"),
                condition=Q(kind__in=["assign", "comment", "review"]),
                name="weir_operation_reviews",
            ),
            models.Index(
                fields=("job", "-created_at"), condition=Q(kind=OperationKind.DRILL.value), name="weir_operation_drills"
            ),
            models.Index(
                fields=("job", "-created_at"), condition=Q(kind=OperationKind.COPY.value), name="weir_operation_copies"
            ),
            models.Index(fields=("run",), condition=Q(state__in=_ACTIVE_VALUES), name="weir_operation_active"),
        ]
        constraints = [
            # A cancel must be possible while a stop or drain is under way, so it has an index of its own.
            models.UniqueConstraint(
                fields=("run",),
                condition=Q(state__in=_ACTIVE_VALUES, kind__in=["stop", "drain"]),
                name="weir_operation_one_end",
            ),
            models.UniqueConstraint(
                fields=("run",), condition=Q(state__in=_ACTIVE_VALUES, kind="cancel"), name="weir_operation_one_cancel"
            ),
            models.UniqueConstraint(
                fields=("requested_by", "idempotency_key"),
                condition=Q(idempotency_key__isnull=False),
                name="weir_operation_idempotency",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"

    @property
    def shows_run(self) -> bool:
        """Whether pages show the state of the created run, which outlives the operation, instead of `state`."""
        return self.run_id is not None and self._succeeded_with("run") == self.run_id

    @property
    def made_savepoint(self) -> int | None:
        """The number of the savepoint that the operation on a run has taken."""
        return None if self.run_id is None else self._succeeded_with("checkpoint")

    def _succeeded_with(self, name: str) -> int | None:
        value = self.result.get(name) if self.state == OperationState.SUCCEEDED and self.result else None
        return value if isinstance(value, int) else None

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES


class BulkOperation(models.Model):
    """The same act on several jobs. Its page and its REST resource show the result for each job.

    `results`: by job `job`, `operation` (id, or None), `refusal`, and of tags `changes` and `effect`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    kind = models.TextField()
    tags = models.JSONField(default=list)
    requested_by = models.ForeignKey(User, models.PROTECT, related_name="+")
    reason = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(db_default=Now())
    results = models.JSONField()

    class Meta:
        db_table = "weir_bulk_operation"

    def __str__(self) -> str:
        return f"{self.kind} of {len(self.results)} jobs"


class Verification(models.Model):
    """The last check of a checkpoint. `files`: path, bytes, checksum and result of each. `states`: operator, name,
    entries and result of each.

    `manifest_sha256` is that of the manifest with which the files were compared.
    """

    checkpoint = models.OneToOneField(Checkpoint, models.CASCADE, primary_key=True, related_name="verification")
    operation = models.ForeignKey(Operation, models.CASCADE, related_name="+")
    manifest_sha256 = models.TextField()
    files = models.JSONField()
    states = models.JSONField(default=list, db_default=[])
    is_damaged = models.BooleanField(default=False, db_default=False)  #: a file or a state is not as in the manifest

    class Meta:
        db_table = "weir_verification"

    def __str__(self) -> str:
        return f"check of checkpoint {self.checkpoint_id}"


class Schedule(models.Model):
    """Savepoints or restore drills of a job at regular times: every `every_hours`, or each day at `daily_at` (UTC).

    `owner` requests them. `keep`: number of unpinned savepoints of the schedule that are kept. Drills have neither
    name nor `keep`. Nothing is requested within `blackouts`. `missed_at` is the last time at which the operation could
    not be requested.
    """

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="schedules", db_index=False)  # the constraint has one
    operation = models.TextField(choices=choices(ScheduledOperation))
    every_hours = models.SmallIntegerField(null=True)
    daily_at = models.TimeField(null=True)
    name = models.TextField(default="", db_default="", blank=True)
    keep = models.SmallIntegerField(null=True)
    #: windows of `console.operations.blackouts`
    blackouts = ArrayField(
        models.TextField(), default=list, db_default=Value([], ArrayField(models.TextField())), blank=True
    )
    owner = models.ForeignKey(User, models.PROTECT, related_name="+")
    next_at = models.DateTimeField()
    last_operation = models.ForeignKey(Operation, models.SET_NULL, null=True, related_name="+")
    missed_at = models.DateTimeField(null=True)
    missed_reason = models.TextField(default="", db_default="", blank=True)

    class Meta:
        db_table = "weir_schedule"
        constraints = [
            models.UniqueConstraint(fields=("job", "operation"), name="weir_schedule_operation"),
            models.CheckConstraint(
                condition=Q(every_hours__isnull=True) ^ Q(daily_at__isnull=True), name="weir_schedule_rule"
            ),
        ]

    def __str__(self) -> str:
        if self.daily_at is not None:
            return f"each day at {self.daily_at:%H:%M} UTC"
        return "every hour" if self.every_hours == 1 else f"every {self.every_hours} hours"

    @property
    def noun(self) -> str:
        return "savepoint" if self.operation == ScheduledOperation.SAVEPOINT else "restore drill"

    @property
    def key_prefix(self) -> str:
        """The beginning of the idempotency keys of its operations."""
        return f"schedule-{self.pk}-"


class Maintenance(models.Model):
    """A time in which the console accepts no operation that starts or changes a run. At most one is active.

    A trigger refuses deletion and all changes but the end (`MAINTENANCE` of the migration), as for the ledger.
    """

    id = models.BigAutoField(primary_key=True)
    reason = models.TextField()
    started_at = models.DateTimeField(db_default=Now())
    started_by = models.ForeignKey(User, models.PROTECT, related_name="+")
    ended_at = models.DateTimeField(null=True)
    ended_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")

    class Meta:
        db_table = "weir_maintenance"
        ordering = ("-pk",)
        verbose_name_plural = "maintenance"
        constraints = [
            models.UniqueConstraint(
                models.Value(1), condition=Q(ended_at__isnull=True), name="weir_maintenance_one_active"
            )
        ]

    def __str__(self) -> str:
        return f"maintenance: {self.reason}"
