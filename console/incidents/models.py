"""Times in which a job was not well, their findings, and the notes of users on them."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from console.accounts.models import User
from console.health.findings import Finding, Level
from console.health.verdicts import decode_finding
from console.jobs.models import Job


class Incident(models.Model):
    """A time in which the stored verdict of a job was not well. A job has at most one open incident.

    `console.incidents.following` writes it. Attempts, operations and versions of the time are read from their own rows.
    """

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(Job, models.CASCADE, related_name="incidents")
    run_id = models.BigIntegerField()  #: latest run of the job when the incident opened
    level = models.SmallIntegerField()  #: `console.health.findings.Level` of the newest verdict that was not well
    cause = models.JSONField()  #: the first finding of that verdict, as in `JobHealth.findings`
    operator_name = models.TextField(default="", db_default="", blank=True)  #: of the cause, as the graph shows it
    opened_at = models.DateTimeField()
    well_since = models.DateTimeField(null=True)  #: the verdict has been well since then; null: it is not well
    closed_at = models.DateTimeField(null=True)  #: the begin of the time that the verdict stayed well
    taken_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    taken_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "weir_incident"
        ordering = ("-id",)
        indexes = [models.Index(fields=("job", "-id"), name="weir_incident_of_job")]
        constraints = [
            models.UniqueConstraint(fields=("job",), condition=Q(closed_at=None), name="weir_incident_one_open"),
        ]

    def __str__(self) -> str:
        return f"incident {self.pk}"

    @property
    def finding(self) -> Finding:
        """The cause: the first finding of the newest verdict that was not well."""
        return decode_finding(self.cause)

    @property
    def level_word(self) -> str:
        return Level(self.level).word

    @property
    def is_open(self) -> bool:
        return self.closed_at is None


class IncidentFinding(models.Model):
    """A finding of an incident, by its rule and operator: the newest form, and when it came, ended and came back."""

    id = models.BigAutoField(primary_key=True)
    incident = models.ForeignKey(Incident, models.CASCADE, related_name="findings", db_index=False)
    rule = models.TextField()
    operator = models.TextField(default="", db_default="", blank=True)  #: uid
    level = models.SmallIntegerField()  #: the highest so far
    first_sentence = models.TextField()
    finding = models.JSONField()  #: as in `JobHealth.findings`
    since = models.DateTimeField()
    worsened_at = models.DateTimeField(null=True)  #: when it reached `level` after a lower level
    ended_at = models.DateTimeField(null=True)
    returns = models.IntegerField(default=0, db_default=0)  #: how often it came back after its end

    class Meta:
        db_table = "weir_incident_finding"
        ordering = ("since", "id")
        constraints = [
            models.UniqueConstraint(fields=("incident", "rule", "operator"), name="weir_incident_finding_of_operator"),
        ]

    def __str__(self) -> str:
        return f"{self.rule} of incident {self.incident_id}"

    @property
    def sentence(self) -> str:
        return str(self.finding["sentence"])


class NoteKind(models.TextChoices):
    NOTE = "note"
    TAKE = "take"
    RELEASE = "release"
    SILENCE = "silence"


class IncidentNote(models.Model):
    """An entry of a user: a note, or that the user has taken or released the incident or silenced its alerts."""

    id = models.BigAutoField(primary_key=True)
    incident = models.ForeignKey(Incident, models.CASCADE, related_name="notes")
    kind = models.TextField(choices=NoteKind.choices, default=NoteKind.NOTE.value)
    text = models.TextField(default="", db_default="", blank=True)
    created_by = models.ForeignKey(User, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "weir_incident_note"
        ordering = ("created_at", "id")

    def __str__(self) -> str:
        return f"{self.kind} on incident {self.incident_id}"
