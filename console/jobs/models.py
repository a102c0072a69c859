"""Definitions and runs, as rows.

Table and column names are a contract: `queries.sql` of the runtime uses them. Columns have database defaults because
the job master inserts without Django. States of a run are those of `runtime.core.job.lifecycle`.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Now

from console.accounts.models import User
from runtime.access.data_hosts import CONNECTION_NAME
from runtime.access.redaction import REFERENCE, is_secret
from runtime.access.secrets import check_references
from runtime.core.job.code_identity import short_digest
from runtime.core.job.graph import Guarantee, Role
from runtime.core.job.guarantee import CheckpointMode, ConnectorGuarantee, EndToEndGuarantee, end_to_end_guarantee
from runtime.core.job.key_groups import DEFAULT_MAX_PARALLELISM
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState
from runtime.core.job.settings import ExecutionMode
from runtime.errors import JobRejected


def choices(enum: type[StrEnum], words: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, str]]:
    """Enum members as Django choices with readable labels. `words`: the labels that are not the value itself."""
    return [(each.value, words.get(each) or each.value.replace("_", " ").capitalize()) for each in enum]


class PackageState(StrEnum):
    DESCRIBING = "describing"  #: a stage imports it
    READY = "ready"
    REJECTED = "rejected"  #: its code cannot be imported, or does not fit this deployment
    DELETING = "deleting"  #: no version can name it any more; its file and its row are deleted next


PACKAGE_STATES = choices(PackageState)


class Package(models.Model):
    """The code of jobs with its dependencies. The file is in the storage, under the digest of its contents."""

    digest = models.TextField(primary_key=True)
    size = models.BigIntegerField()  #: of the file
    state = models.TextField(choices=PACKAGE_STATES, default=PackageState.DESCRIBING.value)
    #: pipelines with their schemas, versions of Weir, Python and Arrow, and distributions; null: not described
    description = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)  #: while it is described: of the last failed attempt
    failed_attempts = models.PositiveIntegerField(default=0, db_default=0)  #: to describe it
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    used_at = models.DateTimeField(db_default=Now())  #: time of the newest upload, or of the newest version with it
    #: time of the last wake-up of the describe stage, renewed while it runs; in the future after a failed attempt
    woken_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "weir_package"
        ordering = ("-created_at", "digest")

    def __str__(self) -> str:
        return f"package {short_digest(self.digest)}"

    @property
    def is_active(self) -> bool:
        """Whether its description has not ended."""
        return self.state == PackageState.DESCRIBING

    @property
    def pipelines(self) -> Mapping[str, Mapping[str, Any]]:
        """The descriptions of its pipelines by name."""
        return {each["name"]: each for each in (self.description or {}).get("pipelines", ())}

    def schema_of(self, pipeline: str) -> Mapping[str, Any]:
        """The schema of the parameters of a pipeline. It may declare a secret that a newer package does not have."""
        return dict(self.pipelines[pipeline]["schema"])


class Pipeline(models.Model):
    """A pipeline that is installed or that a package offers, with the JSON schema of its parameters.

    Rows come from a sync or from the description of a package, never from a form.

    `queries` is SQL by name, applicable to the state of any checkpoint of the pipeline's jobs.
    """

    name = models.TextField(primary_key=True)
    description = models.TextField(default="", db_default="")
    schema = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    queries = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    #: the newest package that offers it; null: it is installed beside Weir
    package = models.ForeignKey(Package, models.PROTECT, null=True, blank=True, related_name="+")
    error = models.TextField(default="", db_default="")  #: why the pipeline cannot be used
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "weir_pipeline"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Connection(models.Model):
    """A named connection, which only an administrator makes: address, login, TLS and secrets together.

    Jobs of its pipelines write `${connection:NAME}`. A secret goes to the hosts of the connections that mention it.
    """

    name = models.TextField(unique=True, validators=[RegexValidator(rf"^(?:{CONNECTION_NAME.pattern})\Z")])
    description = models.TextField(default="", blank=True, db_default="")
    #: a URL, or `host:port` of Kafka's servers; secrets are references
    address = models.TextField(help_text="A URL, or host:port of Kafka's servers. A secret is written ${secret:NAME}.")
    options = models.JSONField(
        default=dict,
        db_default=Value({}, models.JSONField()),
        blank=True,
        help_text="Parameters of libpq, options of librdkafka or of the registry, or headers of a webhook, as texts.",
    )
    pipelines = models.TextField(help_text="Names of the pipelines that may use it, separated by spaces; * for all.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        db_table = "weir_connection"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises ValidationError for literal passwords, and for options that are no texts."""
        if not isinstance(self.options, dict) or not all(isinstance(value, str) for value in self.options.values()):
            raise ValidationError({"options": "must be an object of texts"})
        for field, texts in {"address": {"": self.address}, "options": self.options}.items():
            for name, text in texts.items():
                try:
                    check_references(f"{field} {name}".strip(), text)
                except JobRejected as error:
                    raise ValidationError({field: str(error)}) from error
                if is_secret(name, {}) and not REFERENCE.search(text):
                    raise ValidationError({field: f"{name} is a secret: write ${{secret:NAME}}"})


class ReviewPolicy(StrEnum):
    """Effect of a restore from a checkpoint that is not reviewed. Recovery by the job master has no such check."""

    OFF = "off"
    WARN = "warn"
    REFUSE = "refuse"


class Job(models.Model):
    """A name for a succession of versions, runs and checkpoints."""

    id = models.BigAutoField(primary_key=True)
    name = models.TextField(unique=True)
    pipeline = models.TextField()
    description = models.TextField(default="", blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    last_checkpoint_id = models.BigIntegerField(default=0, db_default=0)  # the job master increments it
    last_version = models.IntegerField(default=0, db_default=0)  #: highest number of a deleted version
    owner = models.TextField(default="", db_default="", blank=True)  #: team or person to ask
    tags = models.JSONField(default=list, db_default=Value([], models.JSONField()), blank=True)
    runbook = models.TextField(default="", db_default="", blank=True)  #: address of the instructions for operators
    max_silence_s = models.IntegerField(default=0, db_default=0)  #: of a source without records; 0: by its history
    review_policy = models.TextField(
        choices=choices(ReviewPolicy), default=ReviewPolicy.OFF.value, db_default=ReviewPolicy.OFF.value
    )
    archived_at = models.DateTimeField(null=True, blank=True)
    #: its runs write to no target: every sink discards its rows (`runtime.dataflow.builder.Dataflow.isolate`)
    discards_output = models.BooleanField(default=False, db_default=False)
    cloned_from = models.ForeignKey("checkpoints.Checkpoint", models.PROTECT, null=True, related_name="clones")
    #: a trigger sets it when a run is inserted: lists join the latest runs of thousands of jobs (decision 0032)
    latest_run = models.ForeignKey("Run", models.SET_NULL, null=True, editable=False, related_name="+", db_index=False)

    class Meta:
        db_table = "weir_job"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class VersionState(StrEnum):
    COMPILING = "compiling"
    READY = "ready"
    REJECTED = "rejected"


VERSION_STATES = choices(VersionState)
RUN_STATES = choices(
    RunState,
    {
        RunState.QUEUED: "Waiting for a worker",
        RunState.WAITING: "Waiting for slots",
        RunState.STOPPING: "Stopping with savepoint",
    },
)


class JobVersion(models.Model):
    """A definition: immutable once `ready`; every change is a new version."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="versions")
    number = models.IntegerField()
    parallelism = models.IntegerField()
    max_parallelism = models.IntegerField(default=DEFAULT_MAX_PARALLELISM, db_default=DEFAULT_MAX_PARALLELISM)
    params = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    settings = models.JSONField(default=dict, db_default=Value({}, models.JSONField()))
    #: the code of its runs; null: what is installed beside Weir
    package = models.ForeignKey(Package, models.PROTECT, null=True, blank=True, related_name="versions")
    state = models.TextField(choices=VERSION_STATES, default=VersionState.COMPILING.value)
    graph = models.JSONField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)  #: while it is compiled: of the last failed attempt
    failed_attempts = models.PositiveIntegerField(default=0, db_default=0)  #: to compile it, in an outage
    message = models.TextField(default="", db_default="", blank=True)  #: why the version was made
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")
    #: time of the last wake-up of the compile stage, renewed while it runs
    woken_at = models.DateTimeField(db_default=Now())
    #: idempotency key: a repeated submission returns the existing version
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
    def is_active(self) -> bool:
        """Whether its compilation has not ended."""
        return self.state == VersionState.COMPILING

    def parameter_schema(self, newest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema of its parameters, which names the secrets. `newest`: as the pipeline is offered now."""
        return newest if self.package is None else self.package.schema_of(self.job.pipeline)

    @property
    def is_batch(self) -> bool:
        """Whether its runs are Spark plans in BATCH. The compile stage decides."""
        return self.graph is not None and self.graph.get("mode") == ExecutionMode.BATCH

    @property
    def dead_letter_folders(self) -> tuple[str, ...]:
        """The folders of its steps that set rows aside."""
        operators = (self.graph or {}).get("operators", ())
        return tuple(sorted({each["dead_letters"] for each in operators if each.get("dead_letters")}))

    @property
    def has_standing_stages(self) -> bool:
        """Whether an operator has a PySpark stage beside it."""
        return any(operator.get("stage") for operator in (self.graph or {}).get("operators", ()))

    @property
    def guarantee(self) -> EndToEndGuarantee | None:
        """The end-to-end guarantee; None without a graph."""
        if self.graph is None:
            return None
        ends = [
            ConnectorGuarantee(operator["name"], Role(operator["role"]), Guarantee(operator["guarantee"]))
            for operator in self.graph["operators"]
            if operator["role"] != Role.OPERATOR or operator["commits"]
        ]
        return end_to_end_guarantee(
            CheckpointMode(self.settings.get("checkpoint_mode", CheckpointMode.EXACTLY_ONCE)), ends
        )


class Leased(models.Model):
    """A row that a supervisor owns by a lease (`console.runs.lease`), with the newest report of its process."""

    token = models.BigIntegerField(default=0, db_default=0)
    lease_owner = models.TextField(default="", db_default="", blank=True)
    lease_beat = models.BigIntegerField(default=0, db_default=0)
    observed_beat = models.BigIntegerField(default=-1, db_default=-1)
    observed_since = models.DateTimeField(null=True)
    observed_at = models.DateTimeField(null=True)
    live = models.JSONField(null=True)
    live_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True


class Run(Leased):
    """An execution of a version, over as many attempts as it takes."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="runs")
    version = models.ForeignKey(JobVersion, models.PROTECT, related_name="runs")
    parallelism = models.IntegerField()
    state = models.TextField(choices=RUN_STATES)
    restore_checkpoint = models.ForeignKey(
        "checkpoints.Checkpoint", models.PROTECT, null=True, related_name="restored_by"
    )
    restore_path = models.TextField(default="", db_default="", blank=True)  # folder of a savepoint without a row
    allow_unmapped = models.BooleanField(default=False, db_default=False)
    #: first run of the chain of runs that continue each other's checkpoints; null: this run
    lineage = models.BigIntegerField(null=True, blank=True)
    releases = models.IntegerField(default=0, db_default=0)
    removed_attempts = models.IntegerField(default=0, db_default=0)  #: oldest attempts whose rows are removed
    failure = models.JSONField(null=True)
    #: `CodeIdentity` of the newest job master; the graph of the version has that of the compilation
    code = models.JSONField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    created_by = models.ForeignKey(User, models.PROTECT, null=True, related_name="+")

    class Meta:
        db_table = "weir_run"
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("job", "-id"), name="weir_run_latest"),
            models.Index(fields=("id",), include=("state", "created_at"), name="weir_run_facts"),  # for lists of jobs
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("job",),
                condition=~Q(state__in=sorted(state.value for state in TERMINAL_STATES)),
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
    WAITING = "waiting"  #: no worker of the queue has claimed it
    STARTING = "starting"  #: its process has reported no figures yet
    RUNNING = "running"
    RESTARTING = "restarting"  #: its process died and is started again
    DONE = "done"  #: all work is complete
    ENDED = "ended"  #: its run has ended
    FAILED = "failed"  #: it cannot succeed, and its run has failed too


STAGE_STATES = choices(StageState, {StageState.WAITING: "Waiting for a worker"})


class StandingStage(Leased):
    """A PySpark stage that runs beside an operator for as long as the run lasts.

    A task of the queue `standing` leases it, as a run is leased. Each of its processes has its own token.
    """

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="standing_stages")
    operator = models.TextField()
    verb = models.TextField()  #: of `python -m spark_jobs stand`
    state = models.TextField(
        choices=STAGE_STATES, default=StageState.WAITING.value, db_default=StageState.WAITING.value
    )
    deaths = models.IntegerField(default=0, db_default=0)
    reason = models.TextField(default="", db_default="", blank=True)  #: why the last process died
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "weir_standing_stage"
        ordering = ("run", "operator")
        constraints = [models.UniqueConstraint(fields=("run", "operator"), name="weir_standing_stage_operator")]

    def __str__(self) -> str:
        return f"stage of {self.operator}"


class AttemptOutcome(StrEnum):
    """Outcome of an attempt. A new attempt has a new token."""

    RUNNING = "running"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    ENDED = "ended"
    RELEASED = "released"
    LOST = "lost"


ATTEMPT_OUTCOMES = choices(AttemptOutcome)


class Attempt(models.Model):
    """An attempt of a run: the execution under a token."""

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    token = models.BigIntegerField(unique=True)
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    outcome = models.TextField(choices=ATTEMPT_OUTCOMES, default="", db_default="", blank=True)
    reason = models.TextField(default="", db_default="", blank=True)
    detail = models.JSONField(null=True)
    restored_checkpoint = models.ForeignKey("checkpoints.Checkpoint", models.PROTECT, null=True, related_name="+")
    launch = models.JSONField(null=True, editable=False)  #: `runtime.run_store.LaunchTimes`; null until it is complete

    class Meta:
        db_table = "weir_attempt"
        ordering = ("-token",)

    def __str__(self) -> str:
        return f"attempt with token {self.token}"
