"""The latest run of a job after a run is deleted: the newest of those that are left."""

from django.db import migrations

FOLLOW = """
CREATE FUNCTION weir_job_follows_deletions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE weir_job SET latest_run_id = (SELECT max(id) FROM weir_run WHERE job_id = OLD.job_id)
    WHERE id = OLD.job_id AND (latest_run_id IS NULL OR latest_run_id = OLD.id);
    RETURN NULL;
END $$;
CREATE TRIGGER weir_job_follows_deletions AFTER DELETE ON weir_run
    FOR EACH ROW EXECUTE FUNCTION weir_job_follows_deletions();
UPDATE weir_job SET latest_run_id = (SELECT max(id) FROM weir_run WHERE job_id = weir_job.id)
WHERE latest_run_id IS NULL AND EXISTS (SELECT FROM weir_run WHERE job_id = weir_job.id);
"""
FORGET = """
DROP TRIGGER weir_job_follows_deletions ON weir_run;
DROP FUNCTION weir_job_follows_deletions();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0014_run_facts")]
    operations = [
        # Job masters wait for these locks with their reports. The migration fails rather than let them wait long.
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.RunSQL(FOLLOW, FORGET),
    ]
