"""References to checkpoints, which cannot be part of `0001`: checkpoints refer to jobs and runs."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0001_initial"),
        ("jobs", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="cloned_from",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="clones",
                to="checkpoints.checkpoint",
            ),
        ),
        migrations.AddField(
            model_name="run",
            name="restore_checkpoint",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="restored_by",
                to="checkpoints.checkpoint",
            ),
        ),
        migrations.AddField(
            model_name="attempt",
            name="restored_checkpoint",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="checkpoints.checkpoint"
            ),
        ),
    ]
