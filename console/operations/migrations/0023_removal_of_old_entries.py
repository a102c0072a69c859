"""The trigger that keeps ended entries of the ledger lets the removal of old rows pass."""

from django.db import migrations

OLD_ENTRIES = """
DROP TRIGGER weir_operation_stays ON weir_operation;
CREATE TRIGGER weir_operation_stays BEFORE DELETE ON weir_operation FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed')
          AND current_setting('weir.removes_old_entries', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION weir_operation_is_final();
"""
ALL_ENTRIES = """
DROP TRIGGER weir_operation_stays ON weir_operation;
CREATE TRIGGER weir_operation_stays BEFORE DELETE ON weir_operation FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed')) EXECUTE FUNCTION weir_operation_is_final();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0022_words_of_choices"),
    ]

    operations = [
        migrations.RunSQL(OLD_ENTRIES, ALL_ENTRIES),
    ]
