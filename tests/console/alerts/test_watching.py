"""The pass over all jobs, and a sender that is killed while it sends."""

import os
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from console.alerts import watching
from console.alerts.models import Channel, Delivery
from console.alerts.outbox import CLAIM
from console.alerts.watching import watch_jobs
from console.incidents.models import Incident
from console.jobs.models import Run
from tests.console.alerts.passes import deliver_due, watch
from tests.console.alerts.receivers import Webhook
from tests.console.incidents.verdicts import finding, store
from tests.console.ui import rows
from tests.waiting import until

pytestmark = pytest.mark.django_db
SLOW = finding("backpressure", "Backpressure from `sessions`.", "window")
SEND = """
import django; django.setup()
from django.utils import timezone
from console.alerts.outbox import claim, deliver
(key,) = claim(timezone.now(), 1)
deliver(key)
"""


def database_url() -> str:
    """The address of the test database, for a process of its own."""
    values = connection.settings_dict
    login = f"{values['USER']}:{values['PASSWORD']}" if values["PASSWORD"] else values["USER"]
    return f"postgresql://{login}@/{values['NAME']}?host={values['HOST']}&port={values['PORT']}"


def test_a_pass_stores_verdicts_and_follows_them(run: Run, channel: Channel, receiver: Webhook) -> None:
    rows.checkpoint(run, 7, triggered_at=timezone.now() - timedelta(minutes=30), is_stored=False)
    watch_jobs()
    assert Incident.objects.get().job == run.job
    deliver_due()
    assert receiver.events == ["opened"]


def test_verdicts_are_followed_although_some_could_not_be_stored(
    run: Run, start: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("rows_in")

    monkeypatch.setattr(watching, "store_verdicts", fail)
    store(run, start, SLOW)
    with pytest.raises(KeyError):
        watch_jobs()
    assert Incident.objects.get().job == run.job


@pytest.mark.django_db(transaction=True)
def test_the_alert_of_a_killed_sender_is_sent_again_with_the_same_id(
    run: Run, channel: Channel, receiver: Webhook, start: datetime
) -> None:
    """The process is killed after the receiver has the request, and before it has an answer."""
    store(run, start, SLOW)
    watch(start)
    receiver.delay_s = 60
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "console.settings"}
    with subprocess.Popen([sys.executable, "-c", SEND], env=environment) as sender:
        until(lambda: receiver.requests, 60)
        sender.kill()
    assert Delivery.objects.get().delivered_at is None
    assert deliver_due() == 0, "the sender may still live"
    receiver.delay_s = 0
    assert deliver_due(timezone.now() + CLAIM) == 1
    assert [message["id"] for message in receiver.messages] == [str(Delivery.objects.get().pk)] * 2
    assert deliver_due(timezone.now() + 5 * CLAIM) == 0
