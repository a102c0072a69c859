"""The servers of the targets, by address."""

from collections.abc import Iterator

import pytest

from tests.kafka import running_broker


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[str]:
    with running_broker() as found:
        yield found.servers
