"""What Postgres itself must guarantee: increasing attempt tokens, and definitions that do not change once ready."""

from django.db import migrations

TOKENS = "CREATE SEQUENCE weir_token_seq"

IMMUTABLE = """
CREATE FUNCTION weir_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF ROW(NEW.job_id, NEW.number, NEW.parallelism, NEW.max_parallelism, NEW.params, NEW.settings, NEW.state, NEW.graph,
           NEW.inputs, NEW.error)
       IS DISTINCT FROM
       ROW(OLD.job_id, OLD.number, OLD.parallelism, OLD.max_parallelism, OLD.params, OLD.settings, OLD.state, OLD.graph,
           OLD.inputs, OLD.error)
    THEN
        RAISE EXCEPTION 'version % of job % is %: it cannot change, make a new one', OLD.number, OLD.job_id, OLD.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER weir_version_is_immutable BEFORE UPDATE ON weir_job_version
    FOR EACH ROW WHEN (OLD.state <> 'compiling') EXECUTE FUNCTION weir_version_is_immutable();
"""
MUTABLE = """
DROP TRIGGER weir_version_is_immutable ON weir_job_version;
DROP FUNCTION weir_version_is_immutable();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_initial")]
    operations = [
        migrations.RunSQL(TOKENS, "DROP SEQUENCE weir_token_seq"),
        migrations.RunSQL(IMMUTABLE, MUTABLE),
    ]
