"""Concerns of the checkpoints before `0010`, in batches that each lock few rows.

Their figures are not compared: only failures, drains, and snapshots without a restore drill become concerns.
"""

from typing import Any, Final

from django.db import migrations

BATCH: Final = 10_000  #: ids in a transaction
#: Also excludes rows of an interrupted run, and rows whose concerns the trigger has set.
CONCERNS = """
UPDATE weir_checkpoint SET concerns = CASE
        WHEN status = 'failed' THEN ARRAY['failed']
        WHEN kind = 'drain' AND verified_at IS NULL THEN ARRAY['drained', 'unverified']
        WHEN kind = 'drain' THEN ARRAY['drained']
        ELSE ARRAY['unverified']
    END
WHERE id > %s AND id <= %s AND concerns IS NULL AND (
    status = 'failed' AND reason NOT IN ('suspended', 'subsumed', 'declined_subsumed')
    OR status = 'completed' AND discarded_at IS NULL
       AND (kind = 'drain' OR verified_at IS NULL AND (kind <> 'checkpoint' OR pinned_at IS NOT NULL))
)
"""


def set_concerns(apps: Any, editor: Any) -> None:
    with editor.connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(min(id), 1) - 1, coalesce(max(id), 0) FROM weir_checkpoint")
        first, last = cursor.fetchone()
        for begin in range(first, last, BATCH):
            cursor.execute(CONCERNS, (begin, begin + BATCH))


class Migration(migrations.Migration):
    atomic = False  # a transaction per batch
    dependencies = [
        ("checkpoints", "0010_review_desk"),
    ]

    operations = [
        migrations.RunPython(set_concerns, migrations.RunPython.noop),
    ]
