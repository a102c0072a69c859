"""Indexes of the review desk, built without a lock that stops job masters."""

import django.contrib.postgres.indexes
from django.db import migrations, models

from console.concurrent_index import BuildIndexConcurrently

NEEDS_REVIEW = models.Q(("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"]))


class Migration(migrations.Migration):
    atomic = False  # Postgres builds no index concurrently within a transaction
    dependencies = [
        ("checkpoints", "0011_review_history"),
    ]

    operations = [
        BuildIndexConcurrently(
            model_name="checkpoint",
            index=models.Index(condition=NEEDS_REVIEW, fields=["-id"], name="weir_checkpoint_to_review"),
        ),
        BuildIndexConcurrently(
            model_name="checkpoint",
            index=models.Index(condition=NEEDS_REVIEW, fields=["job", "-id"], name="weir_checkpoint_job_review"),
        ),
        BuildIndexConcurrently(
            model_name="checkpoint",
            index=models.Index(condition=NEEDS_REVIEW, fields=["assignee", "-id"], name="weir_checkpoint_assigned"),
        ),
        BuildIndexConcurrently(
            model_name="checkpoint",
            index=django.contrib.postgres.indexes.GinIndex(
                condition=NEEDS_REVIEW, fields=["concerns"], name="weir_checkpoint_concerns"
            ),
        ),
    ]
