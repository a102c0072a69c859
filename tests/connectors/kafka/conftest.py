"""The broker that the tests of Kafka share."""

from collections.abc import Iterator

import pytest

from tests.kafka import Broker, running_broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with running_broker() as broker:
        yield broker
