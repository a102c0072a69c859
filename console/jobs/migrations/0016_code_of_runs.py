"""The code that a run executes, which its job master records."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0015_latest_run_after_deletion")]
    operations = [
        migrations.AddField(model_name="run", name="code", field=models.JSONField(editable=False, null=True)),
    ]
