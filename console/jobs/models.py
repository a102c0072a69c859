"""Definitions and runs, as rows.

Table and column names are a contract: `runtime/io/queries.sql` spells them too, and columns have database defaults
because the job master inserts without Django. States of a run are those of `runtime.core.lifecycle`.
"""

from enum import StrEnum

from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Now

from console.accounts.models import User
from runtime.core.keygroups import DEFAULT_MAX_PARALLELISM
from runtime.core.lifecycle import TERMINAL, RunState
from runtime.core.settings import ExecutionMode


def choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """Enum members as Django wants them, with words for people."""
    return [(member.value, member.value.replace("_", " ").capitalize()) for member in enum]


class Pipeline(models.Model):
    """A pipeline that `spark_jobs` offers, with the JSON schema of its parameters. Refreshed, never typed in.

    `queries` are SQL by name, for the state of any checkpoint of its jobs.
    """

    name = models.TextField(primary_key=True)
    description = models.TextField(default="", db_default="")
    schema = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    queries = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    error = models.TextField(default="", db_default="")  #: why it cannot be used
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "weir_pipeline"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Job(models.Model):
    """A name for a succession of versions, runs and checkpoints."""

    id = models.BigAutoField(primary_key=True)
    name = models.TextField(unique=True)
    pipeline = models.TextField()
    description = models.TextField(default="", blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    last_checkpoint_id = models.BigIntegerField(default=0, db_default=0)  # the job master counts it up

    class Meta:
        db_table = "weir_job"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class VersionState(StrEnum):
    """How far a version has come."""

    COMPILING = "compiling"
    READY = "ready"
    REJECTED = "rejected"


VERSION_STATES = choices(VersionState)
RUN_STATES = choices(RunState)


class JobVersion(models.Model):
    """A definition. Once `ready` nothing in it changes; a change is a new version."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="versions")
    number = models.IntegerField()
    parallelism = models.IntegerField()
    max_parallelism = models.IntegerField(default=DEFAULT_MAX_PARALLELISM, db_default=DEFAULT_MAX_PARALLELISM)
    params = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    settings = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    state = models.TextField(choices=VERSION_STATES, default=VersionState.COMPILING.value)
    graph = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    #: when the compile stage was last asked for
    woken_at = models.DateTimeField(db_default=Now())
    #: by what its user's request is known again, should it come twice
    request_key = models.TextField(null=True, blank=True)

    class Meta:
        db_table = "weir_job_version"
        ordering = ("job", "-number")
        constraints = [
            models.UniqueConstraint(fields=("job", "number"), name="weir_version_number"),
            models.UniqueConstraint(fields=("created_by", "request_key"), name="weir_version_request"),
            models.CheckConstraint(
                condition=Q(parallelism__gte=1, parallelism__lte=F("max_parallelism")),
                name="weir_version_parallelism",
            ),
        ]

    def __str__(self) -> str:
        return f"version {self.number}"

    @property
    def is_batch(self) -> bool:
        """Whether its runs are Spark plans in BATCH, as the compile stage decided."""
        return self.graph is not None and self.graph.get("mode") == ExecutionMode.BATCH


class Run(models.Model):
    """One execution of a version, over as many attempts as it takes."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="runs")
    version = models.ForeignKey(JobVersion, models.PROTECT, related_name="runs")
    parallelism = models.IntegerField()
    state = models.TextField(choices=RUN_STATES)
    restore_checkpoint = models.ForeignKey(
        "checkpoints.Checkpoint", models.PROTECT, null=True, related_name="restored_by"
    )
    restore_path = models.TextField(default="", db_default="", blank=True)  # of a savepoint that no row leads to
    allow_unmapped = models.BooleanField(default=False, db_default=False)
    #: the first of the runs whose checkpoints it continues; null: itself
    lineage = models.BigIntegerField(null=True, blank=True)
    token = models.BigIntegerField(default=0, db_default=0)
    lease_owner = models.TextField(default="", db_default="", blank=True)
    lease_beat = models.BigIntegerField(default=0, db_default=0)
    observed_beat = models.BigIntegerField(default=-1, db_default=-1)
    observed_since = models.DateTimeField(null=True)
    observed_at = models.DateTimeField(null=True)
    releases = models.IntegerField(default=0, db_default=0)
    live = models.JSONField(null=True)
    live_at = models.DateTimeField(null=True)
    failure = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")

    class Meta:
        db_table = "weir_run"
        ordering = ("-id",)
        indexes = [models.Index(fields=("job", "-id"), name="weir_run_latest")]
        constraints = [
            models.UniqueConstraint(
                fields=("job",),
                condition=~Q(state__in=sorted(state.value for state in TERMINAL)),
                name="weir_run_one_active",
            ),
            models.CheckConstraint(condition=Q(state__in=[state.value for state in RunState]), name="weir_run_state"),
        ]

    def __str__(self) -> str:
        return f"run {self.pk}"

    @property
    def run_state(self) -> RunState:
        return RunState(self.state)

    @property
    def is_terminal(self) -> bool:
        return self.run_state.is_terminal


class StageState(StrEnum):
    """Where a standing stage is."""

    WAITING = "waiting"  #: for a place at a worker of its queue
    STARTING = "starting"  #: its process has reported no figures yet
    RUNNING = "running"
    RESTARTING = "restarting"  #: its process died; another one follows
    DONE = "done"  #: with all that there was to do
    ENDED = "ended"  #: with its run
    FAILED = "failed"  #: and the run with it


class StandingStage(models.Model):
    """A PySpark stage that stands beside an operator of a run for as long as the run lasts.

    It is leased as a run is, by a task of the queue `standing`. Each of its processes has a token of its own.
    """

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="standing_stages")
    operator = models.TextField()
    verb = models.TextField()  #: of `python -m spark_jobs stand`
    state = models.TextField(
        choices=choices(StageState), default=StageState.WAITING.value, db_default=StageState.WAITING.value
    )
    token = models.BigIntegerField(default=0, db_default=0)
    lease_owner = models.TextField(default="", db_default="", blank=True)
    lease_beat = models.BigIntegerField(default=0, db_default=0)
    observed_beat = models.BigIntegerField(default=-1, db_default=-1)
    observed_since = models.DateTimeField(null=True)
    observed_at = models.DateTimeField(null=True)
    deaths = models.IntegerField(default=0, db_default=0)
    reason = models.TextField(default="", db_default="", blank=True)  #: why its last process died
    live = models.JSONField(null=True)
    live_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "weir_standing_stage"
        ordering = ("run", "operator")
        constraints = [models.UniqueConstraint(fields=("run", "operator"), name="weir_standing_stage_operator")]

    def __str__(self) -> str:
        return f"stage of {self.operator}"


class AttemptOutcome(StrEnum):
    """How an attempt went. A new attempt has a new token."""

    RUNNING = "running"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    ENDED = "ended"
    RELEASED = "released"
    LOST = "lost"


class Attempt(models.Model):
    """What happened under one token."""

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    token = models.BigIntegerField(unique=True)
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    outcome = models.TextField(choices=choices(AttemptOutcome), default="", db_default="", blank=True)
    reason = models.TextField(default="", db_default="", blank=True)
    detail = models.JSONField(null=True)
    restored_checkpoint = models.ForeignKey("checkpoints.Checkpoint", models.PROTECT, null=True, related_name="+")

    class Meta:
        db_table = "weir_attempt"
        ordering = ("-token",)

    def __str__(self) -> str:
        return f"attempt {self.token}"
