"""The policy of restores from checkpoints that are not reviewed."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0011_clones_and_drills"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="review_policy",
            field=models.TextField(
                choices=[("off", "Off"), ("warn", "Warn"), ("refuse", "Refuse")], db_default="off", default="off"
            ),
        ),
    ]
