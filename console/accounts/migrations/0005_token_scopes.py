import django.contrib.postgres.fields
from django.db import migrations, models

import console.accounts.models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0004_saved_views"),
    ]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="scopes",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.TextField(
                    choices=[
                        ("define", "define"),
                        ("operate", "operate"),
                        ("review", "review"),
                        ("maintain", "maintain"),
                    ]
                ),
                blank=True,
                db_default=models.Value(
                    ["define", "operate", "review", "maintain"],
                    django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None),
                ),
                default=console.accounts.models.all_scopes,
                help_text="A token may read, and do what both its scopes and the permissions of its user allow.",
                size=None,
            ),
        ),
    ]
