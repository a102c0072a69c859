"""Pins and labels of checkpoints; a savepoint gets the name, note and pin that its operation asked for.

The trigger covers every path that ends an operation: the job master, and the reconciler after the master's death.
"""

from django.db import migrations, models

LABEL = """
CREATE FUNCTION weir_savepoint_label() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE weir_checkpoint SET
        name = coalesce(btrim(NEW.params->>'name'), ''),
        note = coalesce(btrim(NEW.params->>'note'), ''),
        pinned_at = CASE WHEN (NEW.params->>'pin')::boolean AND discarded_at IS NULL THEN now() END,
        pinned_by_id = CASE WHEN (NEW.params->>'pin')::boolean AND discarded_at IS NULL THEN NEW.requested_by_id END
    WHERE job_id = NEW.job_id AND number = (NEW.result->>'checkpoint')::bigint AND status = 'completed';
    RETURN NULL;
END $$;
CREATE TRIGGER weir_savepoint_label AFTER UPDATE OF state ON weir_operation
    FOR EACH ROW WHEN (
        OLD.state <> 'succeeded' AND NEW.state = 'succeeded' AND NEW.kind IN ('savepoint', 'stop', 'drain')
        AND NEW.params ?| ARRAY['name', 'note', 'pin'] AND jsonb_typeof(NEW.result->'checkpoint') = 'number'
    ) EXECUTE FUNCTION weir_savepoint_label();
"""
NO_LABEL = """
DROP TRIGGER weir_savepoint_label ON weir_operation;
DROP FUNCTION weir_savepoint_label();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0008_names_and_pins"),
        ("operations", "0004_rescale"),
    ]

    operations = [
        migrations.AlterField(
            model_name="operation",
            name="kind",
            field=models.TextField(
                choices=[
                    ("start", "Start"),
                    ("restore", "Restore"),
                    ("rescale", "Rescale"),
                    ("savepoint", "Savepoint"),
                    ("stop", "Stop"),
                    ("drain", "Drain"),
                    ("cancel", "Cancel"),
                    ("discard", "Discard"),
                    ("pin", "Pin"),
                    ("unpin", "Unpin"),
                    ("label", "Label"),
                ]
            ),
        ),
        migrations.RunSQL(LABEL, NO_LABEL),
    ]
