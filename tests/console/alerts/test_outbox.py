"""Alerts: which are sent, that none is lost, and that repetitions have the same id."""

import hmac
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.alerts import sending
from console.alerts.failing import MAX_DELAY, late_channels
from console.alerts.models import Channel, Delivery, Silence
from console.alerts.outbox import BACKOFF, CLAIM, _deciding_alerts, claim, deliver, deliver_alerts, send_test
from console.health.findings import Level
from console.incidents.following import WELL_FOR
from console.incidents.models import Incident
from console.incidents.services import release, take
from console.jobs.models import Run
from tests.console.alerts.passes import deliver_due, watch
from tests.console.alerts.receivers import SECRET, Webhook
from tests.console.incidents.verdicts import finding, store
from tests.console.ui import rows
from tests.waiting import until

pytestmark = pytest.mark.django_db
MakeChannel = Callable[..., Channel]
SECOND = timedelta(seconds=1)
SLOW = finding("backpressure", "Backpressure from `sessions`, which is busy.", "window")
LATE = finding("checkpoints-overdue", "No checkpoint for 5 min.")
FAILED = finding("run-failed", "Table t is missing.", level=Level.FAILED)


def end(run: Run, at: datetime) -> datetime:
    """The run becomes well at a time, and stays so. Returns the time at which its incident has ended."""
    for moment in (at, at + WELL_FOR):
        store(run, moment)
        watch(moment)
    return at + WELL_FOR


def test_an_alert_names_operator_reason_act_and_incident(
    run: Run, channel: Channel, receiver: Webhook, start: datetime, settings: Settings
) -> None:
    settings.WEIR_CONSOLE_URL = "https://weir.example.com/"
    store(run, start, SLOW)
    watch(start)
    assert deliver_due() == 1
    (message,), incident = receiver.messages, Incident.objects.get()
    assert (message["event"], message["title"]) == ("opened", "flights needs attention")
    assert message["cause"]["sentence"] == "Backpressure from sessions, which is busy."
    assert (message["cause"]["operator"], message["cause"]["operator_name"]) == ("window", "sessions")
    assert message["cause"]["remedy"] == "Look at the log."
    assert message["incident"]["url"] == f"https://weir.example.com/incidents/{incident.pk}/"
    assert (message["job"]["owner"], message["job"]["tags"]) == ("team delays", ["night"])
    for part in ("Operator: sessions", "Act: Look at the log.", message["incident"]["url"], "wiki.example.com"):
        assert part in message["text"]
    row = Delivery.objects.get()
    assert (row.due_at, row.error, str(row.pk)) == (None, "", message["id"])


def test_a_webhook_is_signed(run: Run, channel: Channel, receiver: Webhook, start: datetime) -> None:
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    ((headers, body),) = receiver.requests
    expected = hmac.new(SECRET.encode(), headers["Weir-Timestamp"].encode() + b"." + body, "sha256").hexdigest()
    assert headers["Weir-Signature"] == f"sha256={expected}"
    assert abs(int(headers["Weir-Timestamp"]) - timezone.now().timestamp()) < 60
    assert headers["Weir-Delivery"] == receiver.messages[0]["id"]


def test_a_verdict_that_flaps_is_two_messages(run: Run, channel: Channel, receiver: Webhook, start: datetime) -> None:
    at = start
    for _ in range(6):
        store(run, at, SLOW)
        watch(at)
        store(run, at + 5 * SECOND)
        watch(at + 5 * SECOND)
        at += 10 * SECOND
        deliver_due(at)
    deliver_due(end(run, at))
    assert receiver.events == ["opened", "resolved"]
    assert receiver.messages[1]["title"] == "flights: the incident has ended"
    assert Incident.objects.count() == 1


def test_another_cause_and_a_higher_level_are_sent_once(
    run: Run, channel: Channel, receiver: Webhook, start: datetime
) -> None:
    worse = finding("backpressure", "Backpressure.", "window", Level.FAILED)
    for number, found in enumerate([SLOW, LATE, SLOW, LATE, worse, SLOW, worse]):
        store(run, start + number * SECOND, found)
        watch(start + number * SECOND)
        deliver_due(start + number * SECOND)
    events = [
        (message["event"], message["cause"]["rule"], message["incident"]["level"]) for message in receiver.messages
    ]
    assert events == [
        ("opened", "backpressure", "attention"), ("changed", "checkpoints-overdue", "attention"),
        ("changed", "backpressure", "failed"),
    ]  # fmt: skip


def test_an_alert_is_repeated_until_a_user_takes_the_incident(
    run: Run, make_channel: MakeChannel, receiver: Webhook, start: datetime
) -> None:
    user = rows.operator_user("ada")
    make_channel("daily", repeat_hours=2)
    make_channel("once")
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    watch(start + timedelta(hours=1))
    watch(start + timedelta(hours=2))
    assert deliver_due(start + timedelta(hours=2)) == 1
    assert receiver.events == ["opened", "opened", "repeated"]
    take(user, Incident.objects.get())
    watch(start + timedelta(hours=9))
    assert deliver_due(start + timedelta(hours=9)) == 0
    release(user, Incident.objects.get())
    watch(start + timedelta(hours=9))
    assert deliver_due(start + timedelta(hours=9)) == 1


def test_old_repetitions_are_not_read_in_each_pass(run: Run, make_channel: MakeChannel, start: datetime) -> None:
    make_channel("hourly", repeat_hours=1)
    make_channel("never")
    for hour in range(5):
        store(run, start + timedelta(hours=hour), SLOW)
        watch(start + timedelta(hours=hour))
        Delivery.objects.filter(delivered_at=None).update(delivered_at=start, due_at=None)
    assert Delivery.objects.filter(event="repeated").count() == 4
    deciding = _deciding_alerts(list(Incident.objects.all()))
    assert [(row.channel.name, row.event) for row in deciding.order_by("channel__name", "created_at")] == [
        ("hourly", "opened"), ("hourly", "repeated"), ("never", "opened"),
    ]  # fmt: skip


def test_alerts_go_to_channels_of_their_tag_and_level(run: Run, make_channel: MakeChannel, start: datetime) -> None:
    make_channel("of the night", tags=["night", "weekend"])
    make_channel("of the day", tags=["day"])
    make_channel("of failures", min_level=Level.FAILED.value)
    make_channel("off", is_enabled=False)
    store(run, start, SLOW)
    watch(start)
    assert set(Delivery.objects.values_list("channel__name", flat=True)) == {"of the night"}
    store(run, start + SECOND, FAILED)
    watch(start + SECOND)
    sent = Delivery.objects.order_by("created_at", "channel__name").values_list("channel__name", "event")
    assert list(sent)[1:] == [("of failures", "opened"), ("of the night", "changed")]


@pytest.mark.parametrize("is_of_job", [True, False])
def test_a_silence_delays_the_alert_of_an_incident_that_outlasts_it(
    run: Run, channel: Channel, start: datetime, is_of_job: bool
) -> None:
    other = rows.run(rows.job("other"))
    Silence.objects.create(job=run.job if is_of_job else None, until=start + timedelta(hours=1))
    for each in (run, other):
        store(each, start, SLOW)
    watch(start)
    alerted = [row.incident.job.name for row in Delivery.objects.all() if row.incident]
    assert alerted == (["other"] if is_of_job else [])
    watch(start + timedelta(hours=1, seconds=1))
    assert Delivery.objects.filter(event="opened").count() == 2


def test_the_end_of_an_incident_is_sent_in_a_silence_if_its_begin_was(
    run: Run, channel: Channel, start: datetime
) -> None:
    other = rows.run(rows.job("other"))
    store(run, start, SLOW)
    watch(start)
    Silence.objects.create(until=start + timedelta(hours=1))
    store(other, start, SLOW)
    watch(start + SECOND)
    for each in (run, other):
        end(each, start + 2 * SECOND)
    assert [(row.incident.job.name, row.event) for row in Delivery.objects.all() if row.incident] == [
        ("flights", "resolved"), ("flights", "opened"),
    ]  # fmt: skip


@pytest.mark.parametrize(("fault", "reason"), [
    ("status", "The receiver answered with status 500."), ("slow", "ReadTimeout"), ("away", "ConnectError"),
])  # fmt: skip
def test_a_failed_delivery_is_tried_again_with_the_same_id(
    run: Run, channel: Channel, receiver: Webhook, start: datetime, fault: str, reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if fault == "away":
        Channel.objects.update(address="http://127.0.0.1:1/alerts")
    elif fault == "slow":
        monkeypatch.setattr(sending, "TIMEOUT_S", 0.2)
        receiver.delay_s = 1
    else:
        receiver.status = 500
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    row = Delivery.objects.get()
    assert row.delivered_at is None
    assert row.tries == 1
    assert reason in row.error
    assert row.due_at
    assert timezone.now() < row.due_at <= timezone.now() + BACKOFF[0]
    assert deliver_due() == 0, "not before the pause"
    deliver_due(row.due_at)
    row.refresh_from_db()
    assert row.due_at
    assert row.due_at - timezone.now() > BACKOFF[0]
    Channel.objects.update(address=receiver.url)
    receiver.status, receiver.delay_s = 200, 0
    assert deliver_due(row.due_at) == 1
    arrived = Delivery.objects.exclude(delivered_at=None).get()
    assert (arrived.error, arrived.tries) == ("", 3)
    assert {message["id"] for message in receiver.messages} == {str(row.pk)}


def test_the_end_of_an_incident_waits_for_the_delivery_of_its_begin(
    run: Run, channel: Channel, receiver: Webhook, start: datetime
) -> None:
    receiver.status = 503
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    at = end(run, start + SECOND)
    receiver.status, receiver.requests = 200, []
    due = Delivery.objects.get(event="opened").due_at
    assert due
    later = max(due, at)
    assert [deliver_due(later), deliver_due(later), deliver_due(later)] == [1, 1, 0]
    assert receiver.events == ["opened", "resolved"]


def test_an_alert_whose_sender_died_is_sent_again(
    run: Run, channel: Channel, receiver: Webhook, start: datetime
) -> None:
    """Before the request it is sent once, after it a second time, each time with the same id."""
    store(run, start, SLOW)
    watch(start)
    now = timezone.now()
    assert len(claim(now, 9)) == 1  # its sender dies before the request
    assert claim(now + CLAIM - SECOND, 9) == [], "it may live"
    (key,) = claim(now + CLAIM, 9)
    row = Delivery.objects.get()
    sending.send(row.channel.address, row.channel.signing_secret, row.message)  # its sender dies before the record
    assert claim(now + 2 * CLAIM, 9) == [key]
    deliver(key)
    assert [message["id"] for message in receiver.messages] == [str(key), str(key)]
    assert claim(now + 9 * CLAIM, 9) == []


@pytest.mark.django_db(transaction=True)
def test_a_worker_sends_alerts_beside_its_tasks(
    run: Run, make_channel: MakeChannel, receiver: Webhook, start: datetime
) -> None:
    """A receiver that does not answer holds a sender and no task."""
    receiver.delay_s = 1
    for number in range(6):
        make_channel(f"channel {number}")
    store(run, start, SLOW)
    watch(start)
    begun = timezone.now()
    deliver_alerts()
    deliver_alerts()
    assert timezone.now() - begun < SECOND
    until(lambda: Delivery.objects.filter(delivered_at=None, tries=0).count() == 2)
    until(lambda: Delivery.objects.exclude(delivered_at=None).count() == 4)
    while Delivery.objects.filter(delivered_at=None).exists():
        deliver_alerts()
        time.sleep(0.1)
    assert len({message["id"] for message in receiver.messages}) == len(receiver.messages) == 6


def test_a_channel_whose_alerts_are_late_is_a_banner_on_all_pages(
    run: Run, channel: Channel, receiver: Webhook, start: datetime, client: Any
) -> None:
    client.force_login(rows.operator_user())
    receiver.status = 500
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    assert late_channels() == ()
    Delivery.objects.update(created_at=timezone.now() - MAX_DELAY - SECOND)
    cache.clear()
    assert [(late.name, late.error) for late in late_channels()] == [
        ("night shift", "The receiver answered with status 500.")
    ]
    page = client.get("/cluster/").content.decode()
    assert 'id="late-alerts"' in page
    assert "night shift" in page
    receiver.status = 200
    deliver_due(timezone.now() + timedelta(minutes=1))
    cache.clear()
    assert 'id="late-alerts"' not in client.get("/cluster/").content.decode()


def test_a_test_message_shows_whether_a_channel_works(channel: Channel, receiver: Webhook, db: None) -> None:
    send_test(channel, User.objects.create_user("ada"))
    deliver_due()
    (message,) = receiver.messages
    assert (message["event"], message["title"]) == ("test", "Test message from Weir")
    assert message["text"].startswith("ada sent this message")
