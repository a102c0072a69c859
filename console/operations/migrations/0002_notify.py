"""An operation asked of a run wakes the run's master at once: it listens on `weir_operation`, and polls for safety."""

from django.db import migrations

NOTIFY = """
CREATE FUNCTION weir_operation_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('weir_operation', NEW.run_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER weir_operation_notify AFTER INSERT ON weir_operation
    FOR EACH ROW WHEN (NEW.run_id IS NOT NULL) EXECUTE FUNCTION weir_operation_notify();
"""
SILENT = """
DROP TRIGGER weir_operation_notify ON weir_operation;
DROP FUNCTION weir_operation_notify();
"""


class Migration(migrations.Migration):
    dependencies = [("operations", "0001_initial")]
    operations = [migrations.RunSQL(NOTIFY, SILENT)]
