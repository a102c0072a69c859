"""Indexes of drills and copies, built without a lock that stops job masters."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

DRILLS = models.Index(
    condition=models.Q(("kind", "drill")), fields=["job", "-created_at"], name="weir_operation_drills"
)
COPIES = models.Index(condition=models.Q(("kind", "copy")), fields=["job", "-created_at"], name="weir_operation_copies")


class Migration(migrations.Migration):
    atomic = False  # Postgres builds no index concurrently within a transaction
    dependencies = [
        ("operations", "0013_copies"),
    ]

    operations = [
        # An early form of `0010_scheduled_drills` built this index, so a database may have it already.
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "CREATE INDEX CONCURRENTLY IF NOT EXISTS weir_operation_drills"
                    " ON weir_operation (job_id, created_at DESC) WHERE kind = 'drill'",
                    "DROP INDEX CONCURRENTLY IF EXISTS weir_operation_drills",
                )
            ],
            state_operations=[migrations.AddIndex(model_name="operation", index=DRILLS)],
        ),
        AddIndexConcurrently(model_name="operation", index=COPIES),
    ]
