import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0008_names_and_pins"),
        ("jobs", "0009_state_queries"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name="checkpoint",
            name="job",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="checkpoints", to="jobs.job"
            ),
        ),
        migrations.AlterField(
            model_name="checkpoint",
            name="run",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="checkpoints", to="jobs.run"
            ),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(fields=["run", "token", "number"], name="weir_checkpoint_of_attempt"),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("discarded_at", None), ("status", "completed")),
                fields=["run", "-number"],
                name="weir_checkpoint_of_run_kept",
            ),
        ),
    ]
