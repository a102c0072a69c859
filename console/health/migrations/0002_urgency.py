from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("health", "0001_verdicts"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="jobhealth", name="weir_job_health_urgency"),
    ]
