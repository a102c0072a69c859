"""The index of lists of jobs over their latest runs, built without a lock that stops job masters."""

from django.db import migrations, models

from console.concurrent_index import BuildIndexConcurrently


class Migration(migrations.Migration):
    atomic = False  # Postgres builds no index concurrently within a transaction
    dependencies = [("jobs", "0013_latest_run")]
    operations = [
        BuildIndexConcurrently(
            model_name="run",
            index=models.Index(fields=["id"], include=("state", "created_at"), name="weir_run_facts"),
        ),
    ]
