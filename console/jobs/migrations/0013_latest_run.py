"""The latest run of a job as a column. Lists of jobs joined it by a subquery for each job before."""

import django.db.models.deletion
from django.db import migrations, models

FOLLOW = """
CREATE FUNCTION weir_job_follows_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE weir_job SET latest_run_id = NEW.id
    WHERE id = NEW.job_id AND (latest_run_id IS NULL OR latest_run_id < NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER weir_job_follows_runs AFTER INSERT ON weir_run
    FOR EACH ROW EXECUTE FUNCTION weir_job_follows_runs();
UPDATE weir_job SET latest_run_id = (SELECT max(id) FROM weir_run WHERE job_id = weir_job.id);
"""
FORGET = """
DROP TRIGGER weir_job_follows_runs ON weir_run;
DROP FUNCTION weir_job_follows_runs();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0012_review_policy")]
    operations = [
        # Job masters wait for these locks with their reports. The migration fails rather than let them wait long.
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="job",
            name="latest_run",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="jobs.run",
            ),
        ),
        migrations.RunSQL(FOLLOW, FORGET),
    ]
