"""The phases of an operation with their times, also after its end.

The trigger covers all writers of a phase: the job master, and the passes of the console. It stores the part of a phase
before a colon, since the rest is progress or an error. A phase is stored once in succession, and at most 50 are.
"""

from django.db import migrations, models

RECORD = """
CREATE FUNCTION weir_operation_phase() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    entered text := split_part(NEW.phase, ':', 1);
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.state = 'running' AND NEW.state = 'queued' THEN
        entered := 'queued again';
    END IF;
    IF entered <> '' AND entered IS DISTINCT FROM NEW.phases->-1->>'phase' AND jsonb_array_length(NEW.phases) < 50 THEN
        NEW.phases := NEW.phases || jsonb_build_object('phase', entered, 'at', statement_timestamp());
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER weir_operation_phase BEFORE INSERT OR UPDATE OF phase, state ON weir_operation
    FOR EACH ROW EXECUTE FUNCTION weir_operation_phase();
"""
NO_RECORD = """
DROP TRIGGER weir_operation_phase ON weir_operation;
DROP FUNCTION weir_operation_phase();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0018_bulk_operations"),
    ]

    operations = [
        migrations.AddField(
            model_name="operation",
            name="phases",
            field=models.JSONField(db_default=models.Value([], models.JSONField())),
        ),
        migrations.RunSQL(RECORD, NO_RECORD),
    ]
