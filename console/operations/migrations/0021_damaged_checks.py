"""Whether a check of files found damage, also for checks that earlier software ended as succeeded.

A file that storage did not deliver counted as damaged. It is unknown now, unless it was missing.
"""

from django.db import migrations, models

MARK = """
UPDATE weir_verification SET is_damaged = true WHERE EXISTS (
    SELECT FROM jsonb_array_elements(files) AS file
    WHERE file ->> 3 NOT IN ('verified', 'size only')
      AND (file ->> 3 NOT LIKE 'cannot be read: %' OR file ->> 3 = 'cannot be read: No such file or directory')
)
"""


class Migration(migrations.Migration):
    dependencies = [("operations", "0020_savepoint_labels")]
    operations = [
        migrations.AddField(
            model_name="verification",
            name="is_damaged",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.RunSQL(MARK, migrations.RunSQL.noop),
    ]
