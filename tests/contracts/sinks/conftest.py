"""The servers of the targets, by address."""

from collections.abc import Iterator

import pytest

from tests.kafka import running_broker
from tests.webhook_server import running_webhook


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[str]:
    with running_broker() as found:
        yield found.servers


@pytest.fixture(scope="session")
def webhook_server() -> Iterator[str]:
    with running_webhook() as found:
        yield found.url
