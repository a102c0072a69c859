"""The form that issued a token, so that a repeated form replaces it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_token_scopes")]
    operations = [
        migrations.AddField(
            model_name="apitoken", name="request_key", field=models.TextField(editable=False, null=True)
        ),
    ]
