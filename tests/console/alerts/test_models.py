"""Channels: addresses are checked with a sentence, and secrets are references that no page and no error shows."""

from collections.abc import Callable
from datetime import datetime

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from console.alerts.models import Channel, Delivery, Silence
from console.jobs.models import Run
from tests.console.alerts.passes import deliver_due, watch
from tests.console.alerts.receivers import SECRET, Webhook, mailbox
from tests.console.incidents.verdicts import finding, store
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db
MakeChannel = Callable[..., Channel]
SLOW = finding("backpressure", "Backpressure from `sessions`.", "window")


@pytest.mark.parametrize(("address", "secret", "problem"), [
    ("https://hooks.example.com/x", "", "A webhook needs a signing secret"),
    ("https:///x", "${secret:HOOK}", "names no host"),
    ("https://hooks.example.com/x", "literal", "The signing secret is no reference: write ${secret:NAME}"),
    ("https://ops:literal@hooks.example.com/x", "${secret:HOOK}", "contains a password"),
    ("https://[hooks", "${secret:HOOK}", "The address is malformed"),
    ("nonsense", "", "No service has the scheme"),
    ("foo://somewhere", "", "No service has the scheme 'foo'"),
    ("slack://", "", "incomplete or malformed for slack://"),
    ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ops", "", "The address contains a secret"),
    ("mailtos://ops:literal@mail.example.com", "", "contains a password"),
    ("mailto://mail.example.com?to=a@example.com&from=b@example.com", "${secret:HOOK}", "Only a webhook"),
    ("slack://${secret:no name}/", "", "is no reference"),
])  # fmt: skip
def test_an_address_that_cannot_work_is_refused_in_a_sentence(address: str, secret: str, problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Channel(name="ops", address=address, signing_secret=secret).full_clean()
    (sentence,) = refused.value.messages
    assert problem in sentence


@pytest.mark.parametrize(("address", "secret"), [
    ("https://hooks.example.com/x", "${secret:HOOK}"),
    ("https://ops:${secret:PASSWORD}@hooks.example.com/x", "${secret:HOOK}"),
    ("${secret:SLACK_ADDRESS}", ""),
    ("slack://${secret:SLACK}/#ops", ""),
    ("mailtos://ops:${secret:MAIL}@mail.example.com?to=night@example.com", ""),
    ("mailto://mail.example.com?to=a@example.com&from=b@example.com&mode=insecure", ""),
])  # fmt: skip
def test_addresses_with_references_are_accepted(address: str, secret: str) -> None:
    Channel(name="ops", address=address, signing_secret=secret).full_clean()


def test_a_mail_names_operator_reason_act_and_incident(run: Run, start: datetime, make_channel: MakeChannel) -> None:
    with mailbox() as box:
        address = f"mailto://127.0.0.1:{box.port}?from=weir@example.com&to=night@example.com&mode=insecure&format=text"
        make_channel("mail", address=address, signing_secret="")
        store(run, start, SLOW)
        watch(start)
        deliver_due()
        assert Delivery.objects.get().delivered_at, Delivery.objects.get().error
        (mail,) = box.mails
    for part in ("flights needs attention", "night@example.com", "Backpressure from sessions", "Look at the log",
                 "/incidents/", str(Delivery.objects.get().pk)):  # fmt: skip
        assert part in mail


def test_a_mail_that_nobody_takes_is_tried_again(run: Run, start: datetime, make_channel: MakeChannel) -> None:
    address = "mailto://127.0.0.1:1?from=weir@example.com&to=night@example.com&mode=insecure"
    make_channel("mail", address=address, signing_secret="")
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    row = Delivery.objects.get()
    assert row.delivered_at is None
    assert "onnection" in row.error


def test_no_page_and_no_error_shows_a_secret(
    run: Run, start: datetime, make_channel: MakeChannel, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    channel = make_channel("ops", address="http://ops:${secret:PASSWORD}@127.0.0.1:1/x")
    monkeypatch.setenv("WEIR_SECRET_PASSWORD", "a very secret password")
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    client.force_login(rows.operator_user())
    pages = [f"/admin/alerts/channel/{channel.pk}/change/", "/admin/alerts/channel/", "/admin/alerts/delivery/"]
    texts = [client.get(page).content.decode() for page in pages]
    assert Delivery.objects.get().error
    for text in (*texts, Delivery.objects.get().error):
        assert "very secret" not in text
        assert SECRET not in text
    monkeypatch.delenv("WEIR_SECRET_PASSWORD")
    due = Delivery.objects.get().due_at
    assert due
    deliver_due(due)
    assert "the secret 'PASSWORD' is not set on this host" in Delivery.objects.get().error


def test_an_error_does_not_quote_a_secret(
    run: Run, start: datetime, make_channel: MakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apprise's errors name the host."""
    monkeypatch.setenv("WEIR_SECRET_PLACE", "localhost")
    address = "mailto://${secret:PLACE}:1?from=weir@example.com&to=night@example.com&mode=insecure"
    make_channel("mail", address=address, signing_secret="")
    store(run, start, SLOW)
    watch(start)
    deliver_due()
    error = Delivery.objects.get().error
    assert "********" in error
    assert "localhost" not in error


def test_the_admin_makes_a_channel_and_sends_a_test_message(client: Client, receiver: Webhook) -> None:
    client.force_login(rows.operator_user())
    values = {"name": "ops", "address": receiver.url, "signing_secret": "", "tags": "night,day", "min_level": "2",
              "repeat_hours": "0", "is_enabled": "on"}  # fmt: skip
    refused = client.post("/admin/alerts/channel/add/", values)
    assert "A webhook needs a signing secret" in blocks.text(refused)
    assert client.post("/admin/alerts/channel/add/", {**values, "signing_secret": "${secret:HOOK}"}).status_code == 302
    channel = Channel.objects.get()
    assert channel.tags == ["night", "day"]
    action = {"action": "send_test_message", "_selected_action": [channel.pk]}
    answer = client.post("/admin/alerts/channel/", action, follow=True)
    assert "A test message to ops is due" in answer.content.decode()
    deliver_due()
    assert receiver.events == ["test"]
    silenced = {"job": "", "until_0": "2030-01-01", "until_1": "00:00", "reason": "move of the disks"}
    assert client.post("/admin/alerts/silence/add/", silenced).status_code == 302
    assert Silence.objects.get().created_by is not None
