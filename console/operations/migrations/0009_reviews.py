"""Assignments, comments and outcomes of reviews, which are operations."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0011_clones_and_drills"),
        ("operations", "0008_clones_and_drills"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
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
                    ("assign", "Assign"),
                    ("comment", "Comment"),
                    ("review", "Review"),
                ]
            ),
        ),
        migrations.AddIndex(
            model_name="operation",
            index=models.Index(
                condition=models.Q(("kind__in", ["assign", "comment", "review"])),
                fields=["job", "-created_at"],
                name="weir_operation_reviews",
            ),
        ),
    ]
