"""The outbox of alerts: which alerts are due, their rows, and their delivery.

`announce` compares each incident with the newest alert of it in each channel, in the transaction that changes the
incident. A state is compared and no event is passed on, so a lost pass, a silence or a new channel loses no alert.

An alert is sent at least once. A sender claims it by moving `due_at` forward, and clears that time after the receipt.
If the sender dies in between, the alert is due again after `CLAIM`, with the same id. The alerts of an incident are
sent to a channel in their order.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import structlog
from django.db import close_old_connections
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from console.accounts.models import User
from console.alerts.messages import incident_message, trial_message
from console.alerts.models import AlertEvent, Channel, Delivery, Silence
from console.alerts.sending import DeliveryFailed, send
from console.incidents.models import Incident

CLAIM: Final = timedelta(seconds=60)  #: longer than a try lasts
SENDERS: Final = 4  #: alerts that a worker sends at a time
BACKOFF: Final = tuple(timedelta(seconds=s) for s in (5, 15, 60, 300, 900, 3600))  #: pauses after failed tries
#: Receivers may take seconds, so no place of the worker waits for them.
_POOL: Final = ThreadPoolExecutor(SENDERS, thread_name_prefix="alerts")
_sending: set["Future[None]"] = set()

log = structlog.get_logger(__name__)


# ---------------------------------------------------------------- which alerts are due


def announce(incidents: Sequence[Incident], now: datetime) -> None:
    """Adds the alerts that are due on `incidents` to the outbox. Call it in the transaction that changes them."""
    channels = list(Channel.objects.filter(is_enabled=True)) if incidents else []
    if not channels:
        return
    silenced = set(Silence.objects.filter(until__gt=now).values_list("job", flat=True))
    sent: dict[tuple[int, int], list[Delivery]] = {}
    for row in _deciding_alerts(incidents):
        sent.setdefault((row.incident_id or 0, row.channel_id), []).append(row)
    rows = []
    for incident in incidents:
        is_silent = None in silenced or incident.job_id in silenced
        for channel in channels:
            former = sent.get((incident.pk, channel.pk), [])
            event = _event(incident, channel, former, now)
            if event is not None and (event is AlertEvent.RESOLVED or not is_silent):
                rows.append(_delivery(channel, incident, event, now))
    Delivery.objects.bulk_create(rows)


def _deciding_alerts(incidents: Sequence[Incident]) -> QuerySet[Delivery]:
    """The alerts on incidents that decide whether another is due, oldest first.

    Repetitions count as the newest alert only: a run that failed long ago has thousands.
    """
    rows = Delivery.objects.filter(incident__in=incidents)
    newest = (
        rows.order_by("incident_id", "channel_id", "-created_at").distinct("incident_id", "channel_id").values("pk")
    )
    return rows.filter(~Q(event=AlertEvent.REPEATED) | Q(pk__in=newest)).order_by("created_at")


def _event(incident: Incident, channel: Channel, former: Sequence[Delivery], now: datetime) -> AlertEvent | None:
    """The alert on the incident that the channel needs now. `former`: those that it has, oldest first."""
    if not incident.is_open:
        return AlertEvent.RESOLVED if former else None
    if incident.well_since is not None:
        return None
    if not former:
        return AlertEvent.OPENED if _is_routed(incident, channel) else None
    if incident.level > max(row.level for row in former) or _cause(incident.cause) not in map(_cause_of, former):
        return AlertEvent.CHANGED
    pause = timedelta(hours=channel.repeat_hours)
    is_due = bool(pause) and former[-1].delivered_at is not None and now - former[-1].created_at >= pause
    return AlertEvent.REPEATED if is_due and incident.taken_by_id is None else None


def _is_routed(incident: Incident, channel: Channel) -> bool:
    has_tag = not channel.tags or not set(channel.tags).isdisjoint(incident.job.tags)
    return has_tag and incident.level >= channel.min_level


def _cause(finding: Mapping[str, Any]) -> tuple[str, str]:
    return finding["rule"], finding["operator"]


def _cause_of(delivery: Delivery) -> tuple[str, str]:
    return _cause(delivery.message["cause"])


def _delivery(channel: Channel, incident: Incident, event: AlertEvent, now: datetime) -> Delivery:
    key = uuid4()
    message = incident_message(key, event, incident, now)
    return Delivery(
        pk=key, channel=channel, incident=incident, event=event, message=message, level=incident.level, created_at=now,
        due_at=now,
    )  # fmt: skip


def send_test(channel: Channel, user: User) -> Delivery:
    """Adds a test message, which a worker sends."""
    key, now = uuid4(), timezone.now()
    message = trial_message(key, now, user.get_username())
    return Delivery.objects.create(pk=key, channel=channel, event=AlertEvent.TEST, message=message, created_at=now)


# ---------------------------------------------------------------- delivery


def deliver_alerts() -> None:
    """Gives the alerts that are due to the senders of this process. A Celery task calls it every few seconds."""
    _sending.difference_update([each for each in _sending if each.done()])
    for key in claim(timezone.now(), SENDERS - len(_sending)):
        _sending.add(_POOL.submit(_deliver_in_thread, key))


def claim(now: datetime, most: int) -> list[UUID]:
    """The keys of at most `most` alerts that are due. No other sender gets them before the end of `CLAIM`."""
    older = Delivery.objects.filter(
        incident=OuterRef("incident"), channel=OuterRef("channel"), delivered_at=None,
        created_at__lt=OuterRef("created_at"),
    )  # fmt: skip
    due = Delivery.objects.filter(Q(due_at__lte=now), delivered_at=None, channel__is_enabled=True)
    keys = list(due.exclude(Exists(older)).order_by("due_at").values_list("pk", flat=True)[:most])
    return [key for key in keys if _is_claimed(key, now)]


def _is_claimed(key: UUID, now: datetime) -> bool:
    rows = Delivery.objects.filter(pk=key, delivered_at=None, due_at__lte=now)
    return rows.update(due_at=now + CLAIM, tries=F("tries") + 1) == 1


def deliver(key: UUID) -> None:
    """Sends a claimed alert, and records the outcome."""
    row = Delivery.objects.select_related("channel").get(pk=key)
    try:
        send(row.channel.address, row.channel.signing_secret, row.message)
    except DeliveryFailed as error:
        pause = BACKOFF[min(row.tries, len(BACKOFF)) - 1]
        Delivery.objects.filter(pk=key).update(due_at=timezone.now() + pause, error=str(error))
        log.warning("alert not delivered", alert=str(key), channel=row.channel.name, tries=row.tries, error=str(error))
    else:
        Delivery.objects.filter(pk=key).update(due_at=None, delivered_at=timezone.now(), error="")


def _deliver_in_thread(key: UUID) -> None:
    close_old_connections()
    try:
        deliver(key)
    except Exception:
        log.exception("an alert is sent again", alert=str(key))
    finally:
        close_old_connections()
