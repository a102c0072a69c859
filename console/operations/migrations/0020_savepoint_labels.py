"""The end of a savepoint, stop or drain keeps the pin, name and note that the savepoint has got meanwhile."""

from django.db import migrations

LABEL = """
CREATE OR REPLACE FUNCTION weir_savepoint_label() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    pins boolean := coalesce((NEW.params->>'pin')::boolean, false);
BEGIN
    UPDATE weir_checkpoint SET
        name = coalesce(nullif(name, ''), btrim(NEW.params->>'name'), ''),
        note = coalesce(nullif(note, ''), btrim(NEW.params->>'note'), ''),
        pinned_at = CASE WHEN pins AND discarded_at IS NULL THEN coalesce(pinned_at, now()) ELSE pinned_at END,
        pinned_by_id = CASE WHEN pins AND discarded_at IS NULL AND pinned_at IS NULL THEN NEW.requested_by_id
            ELSE pinned_by_id END
    WHERE job_id = NEW.job_id AND number = (NEW.result->>'checkpoint')::bigint AND status = 'completed';
    RETURN NULL;
END $$;
"""
EARLIER_LABEL = """
CREATE OR REPLACE FUNCTION weir_savepoint_label() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE weir_checkpoint SET
        name = coalesce(btrim(NEW.params->>'name'), ''),
        note = coalesce(btrim(NEW.params->>'note'), ''),
        pinned_at = CASE WHEN (NEW.params->>'pin')::boolean AND discarded_at IS NULL THEN now() END,
        pinned_by_id = CASE WHEN (NEW.params->>'pin')::boolean AND discarded_at IS NULL THEN NEW.requested_by_id END
    WHERE job_id = NEW.job_id AND number = (NEW.result->>'checkpoint')::bigint AND status = 'completed';
    RETURN NULL;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0019_phases"),
    ]

    operations = [migrations.RunSQL(LABEL, EARLIER_LABEL)]
