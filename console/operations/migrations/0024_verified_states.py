"""The results of the states, beside those of the files."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0023_removal_of_old_entries"),
    ]

    operations = [
        migrations.AddField("verification", "states", models.JSONField(db_default=[], default=list)),
    ]
