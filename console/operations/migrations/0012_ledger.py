"""Changes of definitions as entries of the ledger, and a trigger that keeps ended entries as they are.

An entry whose outcome is `unknown` is not protected: it records no outcome.
"""

from django.db import migrations, models

FINAL = """
CREATE FUNCTION weir_operation_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'operation % has %: its entry cannot be changed or deleted', OLD.id, OLD.state
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER weir_operation_is_final BEFORE UPDATE ON weir_operation FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed') AND NEW IS DISTINCT FROM OLD)
    EXECUTE FUNCTION weir_operation_is_final();
CREATE TRIGGER weir_operation_stays BEFORE DELETE ON weir_operation FOR EACH ROW
    WHEN (OLD.state IN ('succeeded', 'failed')) EXECUTE FUNCTION weir_operation_is_final();
"""
NOT_FINAL = """
DROP TRIGGER weir_operation_stays ON weir_operation;
DROP TRIGGER weir_operation_is_final ON weir_operation;
DROP FUNCTION weir_operation_is_final();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("operations", "0011_verifications"),
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
                    ("schedule", "Schedule"),
                    ("unschedule", "Unschedule"),
                    ("clone", "Clone"),
                    ("drill", "Drill"),
                    ("verify", "Verify"),
                    ("assign", "Assign"),
                    ("comment", "Comment"),
                    ("review", "Review"),
                    ("edit", "Edit"),
                    ("define", "Define"),
                ]
            ),
        ),
        migrations.RunSQL(FINAL, NOT_FINAL),
    ]
