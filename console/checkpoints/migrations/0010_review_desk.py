"""The review desk: assignee, concerns and verification of checkpoints.

The trigger covers every path that ends a checkpoint: job masters, the console and the reconciler. It compares with at
most 20 of the preceding 100 checkpoints. The figures of checkpoints before this migration are not compared.
"""

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

CONCERNS = """
CREATE FUNCTION weir_checkpoint_concerns() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    usual record;
    found text[] := '{}';
BEGIN
    IF NEW.status = 'failed' AND NEW.reason NOT IN ('suspended', 'subsumed', 'declined_subsumed') THEN
        found := found || 'failed'::text;
    END IF;
    IF NEW.status = 'completed' THEN
        SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY duration_ms) AS ms,
               percentile_cont(0.5) WITHIN GROUP (ORDER BY size_bytes) AS bytes, count(*) AS number
        INTO usual FROM (
            SELECT duration_ms, size_bytes FROM weir_checkpoint
            WHERE job_id = NEW.job_id AND number BETWEEN NEW.number - 100 AND NEW.number - 1 AND status = 'completed'
              AND (kind = 'checkpoint') = (NEW.kind = 'checkpoint')
            ORDER BY number DESC LIMIT 20
        ) recent;
        IF usual.number >= 5 AND NEW.duration_ms > greatest(3 * usual.ms, usual.ms + 1000) THEN
            found := found || 'slow'::text;
        END IF;
        IF usual.number >= 5 AND NEW.size_bytes > greatest(2 * usual.bytes, usual.bytes + 1048576) THEN
            found := found || 'oversized'::text;
        END IF;
        IF NEW.kind = 'drain' THEN
            found := found || 'drained'::text;
        END IF;
        IF NEW.verified_at IS NULL AND NEW.discarded_at IS NULL
           AND (NEW.kind <> 'checkpoint' OR NEW.pinned_at IS NOT NULL) THEN
            found := found || 'unverified'::text;
        END IF;
    END IF;
    NEW.concerns := nullif(found, '{}');
    RETURN NEW;
END $$;
CREATE TRIGGER weir_checkpoint_concerns
    BEFORE INSERT OR UPDATE OF status, discarded_at, pinned_at, verified_at ON weir_checkpoint
    FOR EACH ROW WHEN (NEW.status <> 'in_progress') EXECUTE FUNCTION weir_checkpoint_concerns();
UPDATE weir_checkpoint SET concerns = ARRAY['failed']
    WHERE status = 'failed' AND reason NOT IN ('suspended', 'subsumed', 'declined_subsumed');
UPDATE weir_checkpoint SET verified_at = NULL WHERE status = 'completed' AND discarded_at IS NULL
    AND (kind <> 'checkpoint' OR pinned_at IS NOT NULL);
"""
NO_CONCERNS = """
DROP TRIGGER weir_checkpoint_concerns ON weir_checkpoint;
DROP FUNCTION weir_checkpoint_concerns();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0009_access_paths"),
        ("jobs", "0011_clones_and_drills"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="checkpoint",
            name="assignee",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="checkpoint",
            name="concerns",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.TextField(
                    choices=[
                        ("failed", "Failed"),
                        ("slow", "Slow"),
                        ("oversized", "Oversized"),
                        ("unverified", "Unverified"),
                        ("drained", "Drained"),
                    ]
                ),
                null=True,
                size=None,
            ),
        ),
        migrations.AddField(
            model_name="checkpoint",
            name="verified_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])),
                fields=["-id"],
                name="weir_checkpoint_to_review",
            ),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])),
                fields=["job", "-id"],
                name="weir_checkpoint_job_review",
            ),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])),
                fields=["assignee", "-id"],
                name="weir_checkpoint_assigned",
            ),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=django.contrib.postgres.indexes.GinIndex(
                condition=models.Q(("concerns__isnull", False), ("review_state__in", ["unreviewed", "in_review"])),
                fields=["concerns"],
                name="weir_checkpoint_concerns",
            ),
        ),
        migrations.RunSQL(CONCERNS, NO_CONCERNS),
    ]
