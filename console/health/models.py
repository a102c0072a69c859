"""The newest verdict on each job, so that lists can be ordered by health, and the newest pass of the housekeeping."""

from django.db import models
from django.db.models import Value

from console.jobs.models import Job


class JobHealth(models.Model):
    """The verdict on the latest run of a job, as `console.health.housekeeping` has last computed it.

    `findings` has an object per finding, the most severe first: rule, level, sentence, remedy, operator, checkpoint,
    since, as_of, act. A later state or attempt of the run voids the row (`console.health.verdicts`).
    """

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="health")
    run_id = models.BigIntegerField()
    run_state = models.TextField()  #: of the run when it was judged
    token = models.BigIntegerField()  #: of its attempt then
    level = models.SmallIntegerField()  #: `console.health.findings.Level`
    sentence = models.TextField(default="", db_default="", blank=True)
    since = models.DateTimeField(null=True)
    findings = models.JSONField(default=list, db_default=Value([], models.JSONField()))
    silent_inputs = models.JSONField(default=list, db_default=Value([], models.JSONField()))  #: (uid, name, since)
    recovery_at = models.DateTimeField(null=True)  #: the time back to which a failure would go
    checked_at = models.DateTimeField()

    class Meta:
        db_table = "weir_job_health"
        verbose_name_plural = "health of jobs"

    def __str__(self) -> str:
        return f"health of job {self.job_id}"


class HousekeepingPass(models.Model):
    """The newest complete pass of a task of the queue housekeeping, or of any periodic task of the queue stages."""

    task = models.TextField(primary_key=True)
    at = models.DateTimeField()

    class Meta:
        db_table = "weir_housekeeping_pass"

    def __str__(self) -> str:
        return f"{self.task} at {self.at}"
