"""A savepoint may be discarded. Only the choices of a form change, not the table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("operations", "0002_notify")]
    operations = [
        migrations.AlterField(
            model_name="operation",
            name="kind",
            field=models.TextField(
                choices=[
                    ("start", "Start"),
                    ("restore", "Restore"),
                    ("savepoint", "Savepoint"),
                    ("stop", "Stop"),
                    ("drain", "Drain"),
                    ("cancel", "Cancel"),
                    ("discard", "Discard"),
                ]
            ),
        ),
    ]
