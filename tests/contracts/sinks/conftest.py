"""The targets, and their servers by address."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.sinks.targets import TARGETS, Place, Target
from tests.kafka_proxy import serial_broker
from tests.webhook_server import running_webhook


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[str]:
    with serial_broker() as found:
        yield found.servers


@pytest.fixture(scope="session")
def webhook_server() -> Iterator[str]:
    with running_webhook() as found:
        yield found.url


@pytest.fixture(params=TARGETS, ids=lambda kind: kind.__name__)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    kind: type[Target] = request.param
    servers = {name: str(request.getfixturevalue(name)) for name in kind.servers}
    made = kind(Place(tmp_path, f"t{os.getpid()}_{time.monotonic_ns()}", servers))
    made.create()
    return made
