from django.db import migrations, models

ADD = "ALTER TABLE weir_metrics ADD COLUMN commit_ms real"
DROP = "ALTER TABLE weir_metrics DROP COLUMN commit_ms"


class Migration(migrations.Migration):
    dependencies = [("metrics", "0001_initial")]

    operations = [
        migrations.RunSQL(
            ADD,
            DROP,
            state_operations=[migrations.AddField("metrics", "commit_ms", models.FloatField(null=True))],
        ),
    ]
