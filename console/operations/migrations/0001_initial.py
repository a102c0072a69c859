"""The ledger of operations with its triggers, schedules, checks of files, and times of maintenance."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

import console.operations.models

#: A new operation of a run wakes its job master at once: it listens on `weir_operation`, and polls for safety.
NOTIFY = """
CREATE FUNCTION weir_operation_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('weir_operation', NEW.run_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER weir_operation_notify AFTER INSERT ON weir_operation
    FOR EACH ROW WHEN (NEW.run_id IS NOT NULL) EXECUTE FUNCTION weir_operation_notify();
"""

#: A savepoint gets the name, note and pin of its operation, unless it has received others meanwhile. The trigger covers
#: every path that ends an operation: the job master, and the reconciler after the death of the master.
LABEL = """
CREATE FUNCTION weir_savepoint_label() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    pins boolean := coalesce((NEW.params->>'pin')::boolean, false);
BEGIN
    UPDATE weir_checkpoint SET
        name = coalesce(nullif(name, ''), btrim(NEW.params->>'name'), ''),
        note = coalesce(nullif(note, ''), btrim(NEW.params->>'note'), ''),
        pinned_at = CASE WHEN pins AND discarded_at IS NULL THEN coalesce(pinned_at, now()) ELSE pinned_at END,
        pinned_by_id = CASE WHEN pins AND discarded_at IS NULL AND pinned_at IS NULL THEN NEW.requested_by_id
            ELSE pinned_by_id END
    WHERE job_id = NEW.job_id AND number = (NEW.result->>'checkpoint')::bigint AND status = 'completed';
    RETURN NULL;
END $$;
CREATE TRIGGER weir_savepoint_label AFTER UPDATE OF state ON weir_operation
    FOR EACH ROW WHEN (
        OLD.state <> 'succeeded' AND NEW.state = 'succeeded' AND NEW.kind IN ('savepoint', 'stop', 'drain')
        AND NEW.params ?| ARRAY['name', 'note', 'pin'] AND jsonb_typeof(NEW.result->'checkpoint') = 'number'
    ) EXECUTE FUNCTION weir_savepoint_label();
"""

#: Ended entries of the ledger stay as they are. An entry whose outcome is `unknown` is not protected: it records no
#: outcome. Only the removal of old rows may delete an entry; it sets `weir.removes_old_entries` in its transaction.
FINAL = """
CREATE FUNCTION weir_operation_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'operation % has %: its entry cannot be changed or deleted', OLD.id, OLD.state
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER weir_operation_is_final BEFORE UPDATE ON weir_operation FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed') AND NEW IS DISTINCT FROM OLD)
    EXECUTE FUNCTION weir_operation_is_final();
CREATE TRIGGER weir_operation_stays BEFORE DELETE ON weir_operation FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed')
          AND current_setting('weir.removes_old_entries', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION weir_operation_is_final();
"""

#: The phases of an operation with their times, also after its end. The trigger covers all writers of a phase: the job
#: master, and the passes of the console. It stores the part of a phase before a colon, since the rest is progress or an
#: error. A phase is stored once in succession, and at most 50 are.
PHASES = """
CREATE FUNCTION weir_operation_phase() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    entered text := split_part(NEW.phase, ':', 1);
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.state = 'running' AND NEW.state = 'queued' THEN
        entered := 'queued again';
    END IF;
    IF entered <> '' AND entered IS DISTINCT FROM NEW.phases->-1->>'phase' AND jsonb_array_length(NEW.phases) < 50 THEN
        NEW.phases := NEW.phases || jsonb_build_object('phase', entered, 'at', statement_timestamp());
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER weir_operation_phase BEFORE INSERT OR UPDATE OF phase, state ON weir_operation
    FOR EACH ROW EXECUTE FUNCTION weir_operation_phase();
"""

#: An entry of maintenance can only be ended.
MAINTENANCE = """
CREATE FUNCTION weir_maintenance_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'maintenance %: its entry can only be ended', OLD.id USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER weir_maintenance_is_final BEFORE UPDATE ON weir_maintenance FOR EACH ROW
    WHEN (OLD.ended_at IS NOT NULL OR (OLD.reason, OLD.started_at, OLD.started_by_id)
          IS DISTINCT FROM (NEW.reason, NEW.started_at, NEW.started_by_id))
    EXECUTE FUNCTION weir_maintenance_is_final();
CREATE TRIGGER weir_maintenance_stays BEFORE DELETE ON weir_maintenance FOR EACH ROW
    EXECUTE FUNCTION weir_maintenance_is_final();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("checkpoints", "0001_initial"),
        ("jobs", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="BulkOperation",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("kind", models.TextField()),
                ("tags", models.JSONField(default=list)),
                ("reason", models.TextField(blank=True, default="")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("results", models.JSONField()),
                (
                    "requested_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "db_table": "weir_bulk_operation",
            },
        ),
        migrations.CreateModel(
            name="Operation",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                ("kind", models.TextField(choices=console.operations.models.operation_kinds)),
                ("params", models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict)),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "In progress"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("unknown", "Unknown"),
                        ],
                        db_default="queued",
                        default="queued",
                    ),
                ),
                ("phase", models.TextField(blank=True, db_default="", default="")),
                ("phases", models.JSONField(db_default=models.Value([], models.JSONField()))),
                ("reason", models.TextField(blank=True, db_default="", default="")),
                ("request_id", models.TextField(blank=True, db_default="", default="")),
                ("idempotency_key", models.TextField(blank=True, null=True)),
                ("body_hash", models.TextField(blank=True, db_default="", default="")),
                ("token", models.BigIntegerField(null=True)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("result", models.JSONField(null=True)),
                ("error", models.JSONField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="operations", to="jobs.job"
                    ),
                ),
                (
                    "part_of",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="parts",
                        to="operations.operation",
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
                (
                    "run",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, related_name="operations", to="jobs.run"
                    ),
                ),
            ],
            options={
                "db_table": "weir_operation",
                "ordering": ("-created_at", "-id"),
                "indexes": [
                    models.Index(fields=["job", "-created_at"], name="weir_operation_of_job"),
                    models.Index(fields=["-created_at", "-id"], name="weir_operation_newest"),
                    models.Index(
                        condition=models.Q(("kind__in", ["assign", "comment", "review"])),
                        fields=["job", "-created_at"],
                        name="weir_operation_reviews",
                    ),
                    models.Index(
                        condition=models.Q(("kind", "drill")),
                        fields=["job", "-created_at"],
                        name="weir_operation_drills",
                    ),
                    models.Index(
                        condition=models.Q(("kind", "copy")),
                        fields=["job", "-created_at"],
                        name="weir_operation_copies",
                    ),
                    models.Index(
                        condition=models.Q(("state__in", ["queued", "running"])),
                        fields=["run"],
                        name="weir_operation_active",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("kind__in", ["stop", "drain"]), ("state__in", ["queued", "running"])),
                        fields=("run",),
                        name="weir_operation_one_end",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("kind", "cancel"), ("state__in", ["queued", "running"])),
                        fields=("run",),
                        name="weir_operation_one_cancel",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key__isnull", False)),
                        fields=("requested_by", "idempotency_key"),
                        name="weir_operation_idempotency",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("operation", models.TextField(choices=[("savepoint", "Savepoint"), ("drill", "Drill")])),
                ("every_hours", models.SmallIntegerField(null=True)),
                ("daily_at", models.TimeField(null=True)),
                ("name", models.TextField(blank=True, db_default="", default="")),
                ("keep", models.SmallIntegerField(null=True)),
                (
                    "blackouts",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=models.Value(
                            [], django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)
                        ),
                        default=list,
                        size=None,
                    ),
                ),
                ("next_at", models.DateTimeField()),
                ("missed_at", models.DateTimeField(null=True)),
                ("missed_reason", models.TextField(blank=True, db_default="", default="")),
                (
                    "job",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="schedules",
                        to="jobs.job",
                    ),
                ),
                (
                    "last_operation",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="operations.operation",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "db_table": "weir_schedule",
                "constraints": [
                    models.UniqueConstraint(fields=("job", "operation"), name="weir_schedule_operation"),
                    models.CheckConstraint(
                        condition=models.Q(("every_hours__isnull", True), ("daily_at__isnull", True), _connector="XOR"),
                        name="weir_schedule_rule",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Verification",
            fields=[
                (
                    "checkpoint",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="verification",
                        serialize=False,
                        to="checkpoints.checkpoint",
                    ),
                ),
                ("manifest_sha256", models.TextField()),
                ("files", models.JSONField()),
                ("states", models.JSONField(db_default=[], default=list)),
                ("is_damaged", models.BooleanField(db_default=False, default=False)),
                (
                    "operation",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="operations.operation"
                    ),
                ),
            ],
            options={
                "db_table": "weir_verification",
            },
        ),
        migrations.CreateModel(
            name="Maintenance",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("reason", models.TextField()),
                ("started_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "ended_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "started_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "maintenance",
                "db_table": "weir_maintenance",
                "ordering": ("-pk",),
                "constraints": [
                    models.UniqueConstraint(
                        models.Value(1),
                        condition=models.Q(("ended_at__isnull", True)),
                        name="weir_maintenance_one_active",
                    )
                ],
            },
        ),
        migrations.RunSQL(NOTIFY),
        migrations.RunSQL(LABEL),
        migrations.RunSQL(FINAL),
        migrations.RunSQL(PHASES),
        migrations.RunSQL(MAINTENANCE),
    ]
