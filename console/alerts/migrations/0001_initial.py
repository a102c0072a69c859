"""Channels of alerts, silences, and the outbox."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("incidents", "0001_initial"),
        ("jobs", "0002_references_to_checkpoints"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Channel",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "address",
                    models.TextField(
                        help_text="https://… for a signed webhook, else an address of Apprise such as mailtos://USER:${secret:NAME}@HOST?to=… or slack://…. A secret is written ${secret:NAME}; a whole address may be a secret."
                    ),
                ),
                (
                    "signing_secret",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Of a webhook: ${secret:NAME}, the key that signs each request.",
                    ),
                ),
                (
                    "tags",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=models.Value(
                            [], django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)
                        ),
                        default=list,
                        help_text="Alerts of jobs with any of these tags, separated by commas. Empty: of all jobs.",
                        size=None,
                    ),
                ),
                (
                    "min_level",
                    models.SmallIntegerField(
                        choices=[(2, "Attention"), (3, "Failed")],
                        db_default=2,
                        default=2,
                        help_text="The lowest level of an incident that is sent.",
                    ),
                ),
                (
                    "repeat_hours",
                    models.PositiveSmallIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Hours after which the alert of an incident that nobody has taken is sent again. 0: never.",
                    ),
                ),
                (
                    "is_enabled",
                    models.BooleanField(
                        db_default=True,
                        default=True,
                        help_text="Without it no alert is added, and those that wait are not sent.",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
            ],
            options={
                "db_table": "weir_alert_channel",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Silence",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("until", models.DateTimeField()),
                ("reason", models.CharField(blank=True, db_default="", default="", max_length=1000)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: all jobs.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="silences",
                        to="jobs.job",
                    ),
                ),
            ],
            options={
                "db_table": "weir_alert_silence",
                "ordering": ("-until",),
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, primary_key=True, serialize=False)),
                (
                    "event",
                    models.TextField(
                        choices=[
                            ("opened", "Opened"),
                            ("changed", "Changed"),
                            ("repeated", "Repeated"),
                            ("resolved", "Resolved"),
                            ("test", "Test message"),
                        ]
                    ),
                ),
                ("message", models.JSONField()),
                ("level", models.SmallIntegerField(db_default=0, default=0)),
                ("created_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("due_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), null=True)),
                ("tries", models.IntegerField(db_default=0, default=0)),
                ("error", models.TextField(blank=True, db_default="", default="")),
                ("delivered_at", models.DateTimeField(null=True)),
                (
                    "channel",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="alerts.channel"
                    ),
                ),
                (
                    "incident",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="incidents.incident",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "db_table": "weir_alert_delivery",
                "ordering": ("-created_at",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("delivered_at", None)), fields=["due_at"], name="weir_alert_delivery_due"
                    ),
                    models.Index(fields=["incident", "channel", "created_at"], name="weir_alert_delivery_of"),
                ],
            },
        ),
    ]
