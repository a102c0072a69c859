"""Incidents, their findings and notes."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("jobs", "0002_references_to_checkpoints"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Incident",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("run_id", models.BigIntegerField()),
                ("level", models.SmallIntegerField()),
                ("cause", models.JSONField()),
                ("operator_name", models.TextField(blank=True, db_default="", default="")),
                ("opened_at", models.DateTimeField()),
                ("well_since", models.DateTimeField(null=True)),
                ("closed_at", models.DateTimeField(null=True)),
                ("taken_at", models.DateTimeField(null=True)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="incidents", to="jobs.job"
                    ),
                ),
                (
                    "taken_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "db_table": "weir_incident",
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="IncidentFinding",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("rule", models.TextField()),
                ("operator", models.TextField(blank=True, db_default="", default="")),
                ("level", models.SmallIntegerField()),
                ("first_sentence", models.TextField()),
                ("finding", models.JSONField()),
                ("since", models.DateTimeField()),
                ("worsened_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("returns", models.IntegerField(db_default=0, default=0)),
                (
                    "incident",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="findings",
                        to="incidents.incident",
                    ),
                ),
            ],
            options={
                "db_table": "weir_incident_finding",
                "ordering": ("since", "id"),
            },
        ),
        migrations.CreateModel(
            name="IncidentNote",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.TextField(
                        choices=[("note", "Note"), ("take", "Take"), ("release", "Release"), ("silence", "Silence")],
                        default="note",
                    ),
                ),
                ("text", models.TextField(blank=True, db_default="", default="")),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="notes", to="incidents.incident"
                    ),
                ),
            ],
            options={
                "db_table": "weir_incident_note",
                "ordering": ("created_at", "id"),
            },
        ),
        migrations.AddIndex(
            model_name="incident",
            index=models.Index(fields=["job", "-id"], name="weir_incident_of_job"),
        ),
        migrations.AddConstraint(
            model_name="incident",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at", None)), fields=("job",), name="weir_incident_one_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="incidentfinding",
            constraint=models.UniqueConstraint(
                fields=("incident", "rule", "operator"), name="weir_incident_finding_of_operator"
            ),
        ),
    ]
