from django.db import migrations, models
from django.db.models import Value

#: As in 0008, and with the message.
IMMUTABLE = """
CREATE OR REPLACE FUNCTION weir_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF ROW(NEW.job_id, NEW.number, NEW.parallelism, NEW.max_parallelism, NEW.params, NEW.settings, NEW.state, NEW.graph,
           {new}NEW.error)
       IS DISTINCT FROM
       ROW(OLD.job_id, OLD.number, OLD.parallelism, OLD.max_parallelism, OLD.params, OLD.settings, OLD.state, OLD.graph,
           {old}OLD.error)
    THEN
        RAISE EXCEPTION 'version % of job % is %: it cannot change, make a new one', OLD.number, OLD.job_id, OLD.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0009_state_queries")]
    operations = [
        migrations.AddField("job", "last_version", models.IntegerField(default=0, db_default=0)),
        migrations.AddField("job", "owner", models.TextField(blank=True, default="", db_default="")),
        migrations.AddField(
            "job", "tags", models.JSONField(blank=True, default=list, db_default=Value([], models.JSONField()))
        ),
        migrations.AddField("job", "runbook", models.TextField(blank=True, default="", db_default="")),
        migrations.AddField("job", "archived_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("jobversion", "message", models.TextField(blank=True, default="", db_default="")),
        migrations.RunSQL(IMMUTABLE.format(new="NEW.message, ", old="OLD.message, "), IMMUTABLE.format(new="", old="")),
    ]
