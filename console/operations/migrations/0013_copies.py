"""Copies of savepoints, which are operations."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0012_ledger"),
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
                    ("copy", "Copy"),
                    ("assign", "Assign"),
                    ("comment", "Comment"),
                    ("review", "Review"),
                    ("edit", "Edit"),
                    ("define", "Define"),
                ]
            ),
        ),
    ]
