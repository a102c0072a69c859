"""Channels to receivers that run in this process."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from console.alerts.models import Channel
from console.jobs.models import Run
from tests.console.alerts.receivers import SECRET, Webhook, webhook
from tests.console.ui import rows


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_HOOK", SECRET)
    cache.clear()


@pytest.fixture
def receiver() -> Iterator[Webhook]:
    with webhook() as running:
        yield running


@pytest.fixture
def make_channel(db: None, receiver: Webhook) -> Callable[..., Channel]:
    def make(name: str = "night shift", **fields: Any) -> Channel:
        values = {"address": receiver.url, "signing_secret": "${secret:HOOK}", **fields}
        channel = Channel(name=name, **values)
        channel.full_clean()
        channel.save()
        return channel

    return make


@pytest.fixture
def channel(make_channel: Callable[..., Channel]) -> Channel:
    return make_channel()


@pytest.fixture
def run(db: None) -> Run:
    job = rows.job("flights")
    job.owner, job.tags, job.runbook = "team delays", ["night"], "https://wiki.example.com/flights"
    job.save()
    return rows.run(job)


@pytest.fixture
def start() -> datetime:
    return timezone.now().replace(microsecond=0)
