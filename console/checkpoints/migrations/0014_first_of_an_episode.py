"""The concerns `slow` and `oversized` name the first checkpoint of an episode, not each one.

A job whose checkpoints become slow had one of them on the review desk every few seconds, until half of the compared
checkpoints were slow. A concern is raised now if none of the compared checkpoints has it. Rows of before keep theirs.
"""

from importlib import import_module
from typing import Final

from django.db import migrations

CONCERNS: Final = """
CREATE OR REPLACE FUNCTION weir_checkpoint_concerns() RETURNS trigger LANGUAGE plpgsql AS $$
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
               percentile_cont(0.5) WITHIN GROUP (ORDER BY size_bytes) AS bytes, count(*) AS number,
               coalesce(bool_or('slow' = ANY (concerns)), false) AS has_slow,
               coalesce(bool_or('oversized' = ANY (concerns)), false) AS has_oversized
        INTO usual FROM (
            SELECT duration_ms, size_bytes, concerns FROM weir_checkpoint
            WHERE job_id = NEW.job_id AND number BETWEEN NEW.number - 100 AND NEW.number - 1 AND status = 'completed'
              AND (kind = 'checkpoint') = (NEW.kind = 'checkpoint')
            ORDER BY number DESC LIMIT 20
        ) recent;
        IF usual.number >= 5 AND NOT usual.has_slow
           AND NEW.duration_ms > greatest(3 * usual.ms, usual.ms + 1000) THEN
            found := found || 'slow'::text;
        END IF;
        IF usual.number >= 5 AND NOT usual.has_oversized
           AND NEW.size_bytes > greatest(2 * usual.bytes, usual.bytes + 1048576) THEN
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
"""
_FUNCTION, _, _ = import_module("console.checkpoints.migrations.0010_review_desk").CONCERNS.partition("CREATE TRIGGER")
EACH: Final = _FUNCTION.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0013_held_by_a_rollback"),
    ]

    operations = [
        migrations.RunSQL(CONCERNS, EACH),
    ]
