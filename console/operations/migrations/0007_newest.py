from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0009_state_queries"),
        ("operations", "0006_savepoint_schedules"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name="operation",
            index=models.Index(fields=["-created_at", "-id"], name="weir_operation_newest"),
        ),
    ]
