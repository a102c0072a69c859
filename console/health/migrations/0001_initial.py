"""Verdicts on the health of jobs, and the times of the last housekeeping passes."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="HousekeepingPass",
            fields=[
                ("task", models.TextField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
            ],
            options={
                "db_table": "weir_housekeeping_pass",
            },
        ),
        migrations.CreateModel(
            name="JobHealth",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="health",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("run_id", models.BigIntegerField()),
                ("run_state", models.TextField()),
                ("token", models.BigIntegerField()),
                ("level", models.SmallIntegerField()),
                ("sentence", models.TextField(blank=True, db_default="", default="")),
                ("since", models.DateTimeField(null=True)),
                ("findings", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("silent_inputs", models.JSONField(db_default=models.Value([], models.JSONField()), default=list)),
                ("recovery_at", models.DateTimeField(null=True)),
                ("checked_at", models.DateTimeField()),
            ],
            options={
                "db_table": "weir_job_health",
                "verbose_name_plural": "health of jobs",
            },
        ),
    ]
