"""Indexes of drills and copies, built without a lock that stops job masters."""

from django.db import migrations, models

from console.concurrent_index import BuildIndexConcurrently

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
        # An early form of `0010_scheduled_drills` built the first index, so a database may have it already.
        BuildIndexConcurrently(model_name="operation", index=DRILLS),
        BuildIndexConcurrently(model_name="operation", index=COPIES),
    ]
