import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0016_rollback"),
    ]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="blackouts",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.TextField(),
                blank=True,
                db_default=models.Value(
                    [], django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)
                ),
                default=list,
                size=None,
            ),
        ),
    ]
