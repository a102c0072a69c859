"""Times of maintenance, and a trigger that lets a row change only by its end."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

FINAL = """
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
NOT_FINAL = """
DROP TRIGGER weir_maintenance_stays ON weir_maintenance;
DROP TRIGGER weir_maintenance_is_final ON weir_maintenance;
DROP FUNCTION weir_maintenance_is_final();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0014_indexes_by_kind"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
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
        migrations.RunSQL(FINAL, NOT_FINAL),
    ]
