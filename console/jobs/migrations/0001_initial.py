"""Definitions and runs of jobs, and three guarantees of Postgres that no model can express.

References to checkpoints follow in `0002`: the tables of checkpoints refer to the tables here.
"""

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

#: Tokens of attempts and standing stages increase, whichever process draws them, so that a higher token fences a lower.
TOKENS = "CREATE SEQUENCE weir_token_seq"

#: A definition does not change once it is ready or rejected. Only its compilation writes it.
IMMUTABLE = """
CREATE FUNCTION weir_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF ROW(NEW.job_id, NEW.number, NEW.parallelism, NEW.max_parallelism, NEW.params, NEW.settings, NEW.state, NEW.graph,
           NEW.message, NEW.error, NEW.package_id)
       IS DISTINCT FROM
       ROW(OLD.job_id, OLD.number, OLD.parallelism, OLD.max_parallelism, OLD.params, OLD.settings, OLD.state, OLD.graph,
           OLD.message, OLD.error, OLD.package_id)
    THEN
        RAISE EXCEPTION 'version % of job % is %: it cannot change, make a new one', OLD.number, OLD.job_id, OLD.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER weir_version_is_immutable BEFORE UPDATE ON weir_job_version
    FOR EACH ROW WHEN (OLD.state <> 'compiling') EXECUTE FUNCTION weir_version_is_immutable();
"""

#: The latest run of a job is a column: lists of thousands of jobs need no subquery for each job (decision 0032).
#: The trigger covers every insert and deletion of a run. After a deletion the newest remaining run is the latest.
LATEST_RUN = """
CREATE FUNCTION weir_job_follows_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE weir_job SET latest_run_id = NEW.id
    WHERE id = NEW.job_id AND (latest_run_id IS NULL OR latest_run_id < NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER weir_job_follows_runs AFTER INSERT ON weir_run
    FOR EACH ROW EXECUTE FUNCTION weir_job_follows_runs();
CREATE FUNCTION weir_job_follows_deletions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE weir_job SET latest_run_id = (SELECT max(id) FROM weir_run WHERE job_id = OLD.job_id)
    WHERE id = OLD.job_id AND (latest_run_id IS NULL OR latest_run_id = OLD.id);
    RETURN NULL;
END $$;
CREATE TRIGGER weir_job_follows_deletions AFTER DELETE ON weir_run
    FOR EACH ROW EXECUTE FUNCTION weir_job_follows_deletions();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Connection",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    models.TextField(
                        unique=True,
                        validators=[django.core.validators.RegexValidator("^(?:[A-Za-z][A-Za-z0-9_-]{0,63})\\Z")],
                    ),
                ),
                ("description", models.TextField(blank=True, db_default="", default="")),
                (
                    "address",
                    models.TextField(
                        help_text="A URL, or host:port of Kafka's servers. A secret is written ${secret:NAME}."
                    ),
                ),
                (
                    "options",
                    models.JSONField(
                        blank=True,
                        db_default=models.Value({}, models.JSONField()),
                        default=dict,
                        help_text="Parameters of libpq, options of librdkafka or of the registry, or headers of a webhook, as texts.",
                    ),
                ),
                (
                    "pipelines",
                    models.TextField(
                        help_text="Names of the pipelines that may use it, separated by spaces; * for all."
                    ),
                ),
                ("updated_at", models.DateTimeField(auto_now=True)),
            ],
            options={
                "db_table": "weir_connection",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Package",
            fields=[
                ("digest", models.TextField(primary_key=True, serialize=False)),
                ("size", models.BigIntegerField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("describing", "Describing"),
                            ("ready", "Ready"),
                            ("rejected", "Rejected"),
                            ("deleting", "Deleting"),
                        ],
                        default="describing",
                    ),
                ),
                ("description", models.JSONField(blank=True, null=True)),
                ("error", models.JSONField(blank=True, null=True)),
                ("failed_attempts", models.PositiveIntegerField(db_default=0, default=0)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("used_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("woken_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "weir_package",
                "ordering": ("-created_at", "digest"),
            },
        ),
        migrations.CreateModel(
            name="Pipeline",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("description", models.TextField(db_default="", default="")),
                ("schema", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ("queries", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                (
                    "package",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="jobs.package",
                    ),
                ),
                ("error", models.TextField(db_default="", default="")),
                ("updated_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                "db_table": "weir_pipeline",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.TextField(unique=True)),
                ("pipeline", models.TextField()),
                ("description", models.TextField(blank=True, db_default="", default="")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("last_checkpoint_id", models.BigIntegerField(db_default=0, default=0)),
                ("last_version", models.IntegerField(db_default=0, default=0)),
                ("owner", models.TextField(blank=True, db_default="", default="")),
                ("tags", models.JSONField(blank=True, db_default=models.Value([], models.JSONField()), default=list)),
                ("runbook", models.TextField(blank=True, db_default="", default="")),
                ("max_silence_s", models.IntegerField(db_default=0, default=0)),
                (
                    "review_policy",
                    models.TextField(
                        choices=[("off", "Off"), ("warn", "Warn"), ("refuse", "Refuse")],
                        db_default="off",
                        default="off",
                    ),
                ),
                ("archived_at", models.DateTimeField(blank=True, null=True)),
                ("discards_output", models.BooleanField(db_default=False, default=False)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "weir_job",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="JobVersion",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("number", models.IntegerField()),
                ("parallelism", models.IntegerField()),
                ("max_parallelism", models.IntegerField(db_default=128, default=128)),
                ("params", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ("settings", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                (
                    "state",
                    models.TextField(
                        choices=[("compiling", "Compiling"), ("ready", "Ready"), ("rejected", "Rejected")],
                        default="compiling",
                    ),
                ),
                (
                    "package",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="versions",
                        to="jobs.package",
                    ),
                ),
                ("graph", models.JSONField(blank=True, null=True)),
                ("error", models.JSONField(blank=True, null=True)),
                ("failed_attempts", models.PositiveIntegerField(db_default=0, default=0)),
                ("message", models.TextField(blank=True, db_default="", default="")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("woken_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("request_key", models.TextField(blank=True, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="versions", to="jobs.job"
                    ),
                ),
            ],
            options={
                "db_table": "weir_job_version",
                "ordering": ("job", "-number"),
                "constraints": [
                    models.UniqueConstraint(fields=("job", "number"), name="weir_version_number"),
                    models.UniqueConstraint(fields=("created_by", "request_key"), name="weir_version_request"),
                    models.CheckConstraint(
                        condition=models.Q(("parallelism__gte", 1), ("parallelism__lte", models.F("max_parallelism"))),
                        name="weir_version_parallelism",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                ("token", models.BigIntegerField(db_default=0, default=0)),
                ("lease_owner", models.TextField(blank=True, db_default="", default="")),
                ("lease_beat", models.BigIntegerField(db_default=0, default=0)),
                ("observed_beat", models.BigIntegerField(db_default=-1, default=-1)),
                ("observed_since", models.DateTimeField(null=True)),
                ("observed_at", models.DateTimeField(null=True)),
                ("live", models.JSONField(null=True)),
                ("live_at", models.DateTimeField(null=True)),
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("parallelism", models.IntegerField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("queued", "Waiting for a worker"),
                            ("starting", "Starting"),
                            ("waiting", "Waiting for slots"),
                            ("running", "Running"),
                            ("restarting", "Restarting"),
                            ("stopping", "Stopping with savepoint"),
                            ("draining", "Draining"),
                            ("cancelling", "Cancelling"),
                            ("finished", "Finished"),
                            ("stopped", "Stopped"),
                            ("canceled", "Canceled"),
                            ("failed", "Failed"),
                        ]
                    ),
                ),
                ("restore_path", models.TextField(blank=True, db_default="", default="")),
                ("allow_unmapped", models.BooleanField(db_default=False, default=False)),
                ("lineage", models.BigIntegerField(blank=True, null=True)),
                ("releases", models.IntegerField(db_default=0, default=0)),
                ("removed_attempts", models.IntegerField(db_default=0, default=0)),
                ("failure", models.JSONField(null=True)),
                ("code", models.JSONField(editable=False, null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="jobs.job"),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="runs", to="jobs.jobversion"
                    ),
                ),
            ],
            options={
                "db_table": "weir_run",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["job", "-id"], name="weir_run_latest"),
                    models.Index(fields=["id"], include=("state", "created_at"), name="weir_run_facts"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state__in", ["canceled", "failed", "finished", "stopped"]), _negated=True),
                        fields=("job",),
                        name="weir_run_one_active",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "queued",
                                    "starting",
                                    "waiting",
                                    "running",
                                    "restarting",
                                    "stopping",
                                    "draining",
                                    "cancelling",
                                    "finished",
                                    "stopped",
                                    "canceled",
                                    "failed",
                                ],
                            )
                        ),
                        name="weir_run_state",
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="job",
            name="latest_run",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="jobs.run",
            ),
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("token", models.BigIntegerField(unique=True)),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "outcome",
                    models.TextField(
                        blank=True,
                        choices=[
                            ("running", "Running"),
                            ("failed", "Failed"),
                            ("superseded", "Superseded"),
                            ("ended", "Ended"),
                            ("released", "Released"),
                            ("lost", "Lost"),
                        ],
                        db_default="",
                        default="",
                    ),
                ),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("detail", models.JSONField(null=True)),
                ("launch", models.JSONField(editable=False, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="attempts", to="jobs.run"
                    ),
                ),
            ],
            options={
                "db_table": "weir_attempt",
                "ordering": ("-token",),
            },
        ),
        migrations.CreateModel(
            name="StandingStage",
            fields=[
                ("token", models.BigIntegerField(db_default=0, default=0)),
                ("lease_owner", models.TextField(blank=True, db_default="", default="")),
                ("lease_beat", models.BigIntegerField(db_default=0, default=0)),
                ("observed_beat", models.BigIntegerField(db_default=-1, default=-1)),
                ("observed_since", models.DateTimeField(null=True)),
                ("observed_at", models.DateTimeField(null=True)),
                ("live", models.JSONField(null=True)),
                ("live_at", models.DateTimeField(null=True)),
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("operator", models.TextField()),
                ("verb", models.TextField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("waiting", "Waiting for a worker"),
                            ("starting", "Starting"),
                            ("running", "Running"),
                            ("restarting", "Restarting"),
                            ("done", "Done"),
                            ("ended", "Ended"),
                            ("failed", "Failed"),
                        ],
                        db_default="waiting",
                        default="waiting",
                    ),
                ),
                ("deaths", models.IntegerField(db_default=0, default=0)),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="standing_stages", to="jobs.run"
                    ),
                ),
            ],
            options={
                "db_table": "weir_standing_stage",
                "ordering": ("run", "operator"),
                "constraints": [
                    models.UniqueConstraint(fields=("run", "operator"), name="weir_standing_stage_operator")
                ],
            },
        ),
        migrations.RunSQL(TOKENS),
        migrations.RunSQL(IMMUTABLE),
        migrations.RunSQL(LATEST_RUN),
    ]
