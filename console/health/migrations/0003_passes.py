from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("health", "0002_urgency"),
    ]

    operations = [
        migrations.CreateModel(
            name="HousekeepingPass",
            fields=[
                ("task", models.TextField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
            ],
            options={"db_table": "weir_housekeeping_pass"},
        ),
    ]
