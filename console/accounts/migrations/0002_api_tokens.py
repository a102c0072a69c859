"""Hashes of API tokens in place of the tokens themselves. Those that were issued before stay valid."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

#: `authtoken_token` was a table of rest_framework.authtoken, which installations from before have.
TAKE_OVER = """
DO $$
BEGIN
    IF to_regclass('authtoken_token') IS NOT NULL THEN
        INSERT INTO weir_api_token (user_id, digest, hint, created_at)
        SELECT user_id, encode(sha256(convert_to(key, 'UTF8')), 'hex'), left(key, 4), created FROM authtoken_token;
        DROP TABLE authtoken_token;
    END IF;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]
    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("digest", models.TextField(unique=True)),
                ("hint", models.TextField()),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("used_at", models.DateTimeField(null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={"db_table": "weir_api_token", "ordering": ("-created_at",), "verbose_name": "API token"},
        ),
        migrations.RunSQL(TAKE_OVER, migrations.RunSQL.noop),
    ]
