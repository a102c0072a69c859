"""Checkpoints, queries of their state, and the trigger that sets the concerns of a checkpoint."""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

#: Why a checkpoint needs a review. The trigger covers every path that ends a checkpoint: job masters, the console and
#: the reconciler. When a checkpoint ends, it compares with at most 20 of the preceding 100 checkpoints. A job with slow
#: checkpoints has one concern per episode: `slow` and `oversized` need compared checkpoints without that concern.
#: Later changes affect the concern `unverified` only, because the medians at the end decide about the figures.
CONCERNS = """
CREATE FUNCTION weir_checkpoint_concerns() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    usual record;
    found text[] := '{}';
    ends boolean := true;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        ends := OLD.status <> NEW.status;
    END IF;
    IF NOT ends THEN
        found := array_remove(coalesce(NEW.concerns, '{}'), 'unverified');
    ELSIF NEW.status = 'failed' AND NEW.reason NOT IN ('suspended', 'subsumed', 'declined_subsumed') THEN
        found := found || 'failed'::text;
    ELSIF NEW.status = 'completed' THEN
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY duration_ms) AS ms,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY size_bytes) AS bytes, count(*) AS number,
               coalesce(bool_or('slow' = ANY (concerns)), false) AS has_slow,
               coalesce(bool_or('oversized' = ANY (concerns)), false) AS has_oversized
        INTO usual FROM (
            SELECT duration_ms, size_bytes, concerns FROM weir_checkpoint
            WHERE job_id = NEW.job_id AND number BETWEEN NEW.number - 100 AND NEW.number - 1 AND status = 'completed'
              AND (kind = 'checkpoint') = (NEW.kind = 'checkpoint')
            ORDER BY number DESC LIMIT 20
        ) recent;
        IF usual.number >= 5 AND NOT usual.has_slow
           AND NEW.duration_ms > greatest(3 * usual.ms, usual.ms + 1000) THEN
            found := found || 'slow'::text;
        END IF;
        IF usual.number >= 5 AND NOT usual.has_oversized
           AND NEW.size_bytes > greatest(2 * usual.bytes, usual.bytes + 1048576) THEN
            found := found || 'oversized'::text;
        END IF;
        IF NEW.kind = 'drain' THEN
            found := found || 'drained'::text;
        END IF;
    END IF;
    IF NEW.status = 'completed' AND NEW.verified_at IS NULL AND NEW.discarded_at IS NULL
       AND (NEW.kind <> 'checkpoint' OR NEW.pinned_at IS NOT NULL) THEN
        found := found || 'unverified'::text;
    END IF;
    NEW.concerns := nullif(found, '{}');
    RETURN NEW;
END $$;
CREATE TRIGGER weir_checkpoint_concerns
    BEFORE INSERT OR UPDATE OF status, discarded_at, pinned_at, verified_at ON weir_checkpoint
    FOR EACH ROW WHEN (NEW.status <> 'in_progress') EXECUTE FUNCTION weir_checkpoint_concerns();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("jobs", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Checkpoint",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("token", models.BigIntegerField()),
                ("number", models.BigIntegerField()),
                (
                    "kind",
                    models.TextField(
                        choices=[
                            ("checkpoint", "Checkpoint"),
                            ("savepoint", "Savepoint"),
                            ("stop", "Stop"),
                            ("drain", "Drain"),
                        ]
                    ),
                ),
                (
                    "status",
                    models.TextField(
                        choices=[("in_progress", "In progress"), ("completed", "Completed"), ("failed", "Failed")]
                    ),
                ),
                ("triggered_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("completed_at", models.DateTimeField(null=True)),
                ("duration_ms", models.BigIntegerField(null=True)),
                ("size_bytes", models.BigIntegerField(null=True)),
                ("written_bytes", models.BigIntegerField(null=True)),
                ("acknowledged", models.IntegerField(db_default=0, default=0)),
                ("subtasks", models.IntegerField(db_default=0, default=0)),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("detail", models.TextField(blank=True, db_default="", default="")),
                ("path", models.TextField(blank=True, db_default="", default="")),
                ("operators", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("acknowledgements", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                ("finished_operators", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("max_parallelism", models.IntegerField(db_default=128, default=128)),
                ("discarded_at", models.DateTimeField(null=True)),
                (
                    "review_state",
                    models.TextField(
                        choices=[
                            ("unreviewed", "Not reviewed"),
                            ("in_review", "In review"),
                            ("reviewed", "Reviewed"),
                            ("waived", "Waived"),
                        ],
                        db_default="unreviewed",
                        default="unreviewed",
                    ),
                ),
                ("review_note", models.TextField(blank=True, db_default="", default="")),
                ("reviewed_at", models.DateTimeField(null=True)),
                (
                    "concerns",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(
                            choices=[
                                ("failed", "Failed"),
                                ("slow", "Slow"),
                                ("oversized", "Oversized"),
                                ("unverified", "Not drilled"),
                                ("drained", "Drained"),
                            ]
                        ),
                        null=True,
                        size=None,
                    ),
                ),
                ("verified_at", models.DateTimeField(null=True)),
                ("name", models.TextField(blank=True, db_default="", default="")),
                ("note", models.TextField(blank=True, db_default="", default="")),
                ("pinned_at", models.DateTimeField(null=True)),
                ("held_by", models.UUIDField(null=True)),
                (
                    "assignee",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="checkpoints",
                        to="jobs.job",
                    ),
                ),
                (
                    "pinned_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "reviewer",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="checkpoints",
                        to="jobs.run",
                    ),
                ),
            ],
            options={
                "db_table": "weir_checkpoint",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["run", "-number"], name="weir_checkpoint_of_run"),
                    models.Index(fields=["run", "token", "number"], name="weir_checkpoint_of_attempt"),
                    models.Index(fields=["triggered_at", "id"], name="weir_checkpoint_time"),
                    models.Index(
                        condition=models.Q(("status", "in_progress")),
                        fields=["run"],
                        name="weir_checkpoint_in_progress",
                    ),
                    models.Index(
                        condition=models.Q(("discarded_at", None), ("status", "completed")),
                        fields=["job", "-number"],
                        name="weir_checkpoint_restorable",
                    ),
                    models.Index(
                        condition=models.Q(("discarded_at", None), ("status", "completed")),
                        fields=["run", "-number"],
                        name="weir_checkpoint_of_run_kept",
                    ),
                    models.Index(
                        condition=models.Q(("kind", "checkpoint"), _negated=True),
                        fields=["job", "-number"],
                        name="weir_checkpoint_savepoints",
                    ),
                    models.Index(
                        condition=models.Q(("status", "failed")),
                        fields=["job", "run", "reason", "id"],
                        name="weir_checkpoint_failures",
                    ),
                    models.Index(fields=["job", "run", "status"], name="weir_checkpoint_counts"),
                    models.Index(
                        condition=models.Q(("status", "failed")),
                        fields=["job", "reason", "-number"],
                        name="weir_checkpoint_reasons",
                    ),
                    models.Index(
                        fields=["job", "-number", "triggered_at", "run", "duration_ms", "size_bytes"],
                        name="weir_checkpoint_filters",
                    ),
                    models.Index(
                        condition=models.Q(("review_state", "unreviewed"), _negated=True),
                        fields=["job", "-number"],
                        name="weir_checkpoint_reviews",
                    ),
                    models.Index(
                        condition=models.Q(("name", ""), _negated=True),
                        fields=["job", "-number"],
                        name="weir_checkpoint_names",
                    ),
                    models.Index(
                        condition=models.Q(("pinned_at__isnull", False)),
                        fields=["job", "-number"],
                        name="weir_checkpoint_pinned",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])
                        ),
                        fields=["-id"],
                        name="weir_checkpoint_to_review",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])
                        ),
                        fields=["job", "-id"],
                        name="weir_checkpoint_job_review",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])
                        ),
                        fields=["assignee", "-id"],
                        name="weir_checkpoint_assigned",
                    ),
                    django.contrib.postgres.indexes.GinIndex(
                        condition=models.Q(
                            ("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])
                        ),
                        fields=["concerns"],
                        name="weir_checkpoint_concerns",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("job", "number"), name="weir_checkpoint_number"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["checkpoint", "savepoint", "stop", "drain"])),
                        name="weir_checkpoint_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("status__in", ["in_progress", "completed", "failed"])),
                        name="weir_checkpoint_status",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="StateQuery",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("request", models.JSONField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("queued", "Waiting for a worker"),
                            ("running", "Reading"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("canceled", "Canceled"),
                        ],
                        db_default="queued",
                        default="queued",
                    ),
                ),
                ("owner", models.TextField(blank=True, db_default="", default="")),
                ("beat_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("losses", models.IntegerField(db_default=0, default=0)),
                ("progress", models.JSONField(null=True)),
                ("result", models.JSONField(null=True)),
                ("error", models.JSONField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "checkpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="state_queries",
                        to="checkpoints.checkpoint",
                    ),
                ),
                (
                    "requested_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "weir_state_query",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["queued", "running"])),
                        fields=["id"],
                        name="weir_state_query_active",
                    ),
                    models.Index(fields=["ended_at"], name="weir_state_query_ended"),
                ],
            },
        ),
        migrations.RunSQL(CONCERNS),
    ]
