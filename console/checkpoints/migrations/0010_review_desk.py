"""The review desk: assignee, concerns and verification of checkpoints.

The trigger covers every path that ends a checkpoint: job masters, the console and the reconciler. When a checkpoint
ends, it compares with at most 20 of the preceding 100 checkpoints. Later changes affect the concern `unverified` only:
the medians of today have no part in a verdict of that time. No statement here rewrites the table or scans it.
"""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

CONCERNS = """
CREATE FUNCTION weir_checkpoint_concerns() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    usual record;
    found text[] := '{}';
    ends boolean := true;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        ends := OLD.status <> NEW.status;
    END IF;
    IF NOT ends THEN
        found := array_remove(coalesce(NEW.concerns, '{}'), 'unverified');
    ELSIF NEW.status = 'failed' AND NEW.reason NOT IN ('suspended', 'subsumed', 'declined_subsumed') THEN
        found := found || 'failed'::text;
    ELSIF NEW.status = 'completed' THEN
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
    END IF;
    IF NEW.status = 'completed' AND NEW.verified_at IS NULL AND NEW.discarded_at IS NULL
       AND (NEW.kind <> 'checkpoint' OR NEW.pinned_at IS NOT NULL) THEN
        found := found || 'unverified'::text;
    END IF;
    NEW.concerns := nullif(found, '{}');
    RETURN NEW;
END $$;
CREATE TRIGGER weir_checkpoint_concerns
    BEFORE INSERT OR UPDATE OF status, discarded_at, pinned_at, verified_at ON weir_checkpoint
    FOR EACH ROW WHEN (NEW.status <> 'in_progress') EXECUTE FUNCTION weir_checkpoint_concerns();
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
        migrations.RunSQL(CONCERNS, NO_CONCERNS),
    ]
