from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0004_one_version_per_request")]

    operations = [
        migrations.AddField(
            model_name="pipeline",
            name="error",
            field=models.TextField(db_default="", default=""),
        ),
    ]
