"""The times of the steps of an attempt's launch, which its job master records."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0016_code_of_runs")]
    operations = [
        migrations.AddField(model_name="attempt", name="launch", field=models.JSONField(editable=False, null=True)),
    ]
