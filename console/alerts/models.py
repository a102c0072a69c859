"""Channels of alerts, silences, and the outbox: an alert is a row before it is sent."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q, Value
from django.db.models.functions import Now

from console.accounts.models import User
from console.alerts.addresses import address_problem, secret_problem
from console.health.findings import Level
from console.incidents.models import Incident
from console.jobs.models import Job

_LEVELS = [(level.value, level.word.capitalize()) for level in (Level.ATTENTION, Level.FAILED)]


class Channel(models.Model):
    """A place to which alerts are sent. Only an administrator makes channels.

    Secrets are references, as in connections: no row holds their values, which only the sender reads.
    """

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=100, unique=True)
    address = models.TextField(
        help_text="https://… for a signed webhook, else an address of Apprise such as "
        "mailtos://USER:${secret:NAME}@HOST?to=… or slack://…. A secret is written ${secret:NAME}; a whole "
        "address may be a secret."
    )
    signing_secret = models.TextField(
        default="", db_default="", blank=True,
        help_text="Of a webhook: ${secret:NAME}, the key that signs each request.",
    )  # fmt: skip
    tags = ArrayField(
        models.TextField(), default=list, db_default=Value([], ArrayField(models.TextField())), blank=True,
        help_text="Alerts of jobs with any of these tags, separated by commas. Empty: of all jobs.",
    )  # fmt: skip
    min_level = models.SmallIntegerField(
        choices=_LEVELS, default=Level.ATTENTION.value, db_default=Level.ATTENTION.value,
        help_text="The lowest level of an incident that is sent.",
    )  # fmt: skip
    repeat_hours = models.PositiveSmallIntegerField(
        default=0, db_default=0,
        help_text="Hours after which the alert of an incident that nobody has taken is sent again. 0: never.",
    )  # fmt: skip
    is_enabled = models.BooleanField(
        default=True, db_default=True, help_text="Without it no alert is added, and those that wait are not sent."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "weir_alert_channel"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def is_webhook(self) -> bool:
        return bool(self.signing_secret)

    def clean(self) -> None:
        """Raises ValidationError, with a sentence, for an address that cannot work or shows a secret."""
        if problem := address_problem(self.address, is_signed=self.is_webhook):
            raise ValidationError({"address": problem})
        if problem := secret_problem(self.signing_secret):
            raise ValidationError({"signing_secret": problem})


class Silence(models.Model):
    """A time in which no alert is added, of a job or of all. The end of an incident that was announced is sent."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job, models.CASCADE, null=True, blank=True, related_name="silences", help_text="Empty: all jobs."
    )
    until = models.DateTimeField()
    reason = models.CharField(max_length=1000, default="", db_default="", blank=True)
    created_by = models.ForeignKey(User, models.PROTECT, null=True, editable=False, related_name="+")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "weir_alert_silence"
        ordering = ("-until",)

    def __str__(self) -> str:
        return f"silence until {self.until:%Y-%m-%d %H:%M} UTC"


class AlertEvent(models.TextChoices):
    OPENED = "opened"
    CHANGED = "changed"  #: another cause, or a higher level
    REPEATED = "repeated"
    RESOLVED = "resolved"
    TEST = "test", "Test message"


class Delivery(models.Model):
    """An alert for a channel: a row of the outbox. Its id is part of the message, so that a receiver drops repetitions.

    It is inserted in the transaction that changes its incident, and kept until the incident is removed.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    channel = models.ForeignKey(Channel, models.CASCADE, related_name="deliveries")
    incident = models.ForeignKey(Incident, models.CASCADE, null=True, related_name="deliveries")
    event = models.TextField(choices=AlertEvent.choices)
    message = models.JSONField()  #: `console.alerts.messages.Message`
    level = models.SmallIntegerField(default=0, db_default=0)
    created_at = models.DateTimeField(db_default=Now())
    due_at = models.DateTimeField(null=True, db_default=Now())  #: next try; null: delivered
    tries = models.IntegerField(default=0, db_default=0)
    error = models.TextField(default="", db_default="", blank=True)  #: of the newest try
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "weir_alert_delivery"
        ordering = ("-created_at",)
        verbose_name_plural = "deliveries"
        indexes = [
            models.Index(fields=("due_at",), condition=Q(delivered_at=None), name="weir_alert_delivery_due"),
            models.Index(fields=("incident", "channel", "created_at"), name="weir_alert_delivery_of"),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.pk}"
