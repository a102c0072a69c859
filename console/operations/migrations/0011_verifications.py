"""Checks of the files of checkpoints, which are operations, and their last results."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0010_review_desk"),
        ("operations", "0010_scheduled_drills"),
    ]

    operations = [
        migrations.AlterField(
            model_name="operation",
            name="kind",
            field=models.TextField(
                choices=[
                    ("start", "Start"),
                    ("restore", "Restore"),
                    ("rescale", "Rescale"),
                    ("savepoint", "Savepoint"),
                    ("stop", "Stop"),
                    ("drain", "Drain"),
                    ("cancel", "Cancel"),
                    ("discard", "Discard"),
                    ("pin", "Pin"),
                    ("unpin", "Unpin"),
                    ("label", "Label"),
                    ("schedule", "Schedule"),
                    ("unschedule", "Unschedule"),
                    ("clone", "Clone"),
                    ("drill", "Drill"),
                    ("verify", "Verify"),
                    ("assign", "Assign"),
                    ("comment", "Comment"),
                    ("review", "Review"),
                ]
            ),
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
    ]
