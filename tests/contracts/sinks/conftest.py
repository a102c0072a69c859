"""The targets, and their servers by address."""

import os
import time
from collections.abc import Callable, Iterator
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


@pytest.fixture
def new_target(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[type[Target], Path], Target]:
    """Makes a target whose files lie in a folder."""

    def make(kind: type[Target], folder: Path) -> Target:
        servers = {name: str(request.getfixturevalue(name)) for name in kind.servers}
        made = kind(Place(folder, f"t{os.getpid()}_{time.monotonic_ns()}", servers, tmp_path))
        made.create()
        return made

    return make


@pytest.fixture(params=TARGETS, ids=lambda kind: kind.__name__)
def target(
    request: pytest.FixtureRequest, new_target: Callable[[type[Target], Path], Target], tmp_path: Path
) -> Target:
    return new_target(request.param, tmp_path)
