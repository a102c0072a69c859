"""The targets, and their servers by address."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runtime.access.data_roots import DATA_URLS_VARIABLE
from tests.apache_kafka import ApacheKafka
from tests.contracts.sinks.targets import TARGETS, NewTarget, Place, Server, Target
from tests.kafka_proxy import serial_broker
from tests.s3 import BUCKET, S3Server, environment_of
from tests.s3_proxy import faulty_proxy
from tests.stalls import stalling_proxy
from tests.webhook_server import running_webhook


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leaves most tests of a target with a heavy server to the long suite."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if any(isinstance(each, type) and issubclass(each, Target) and each.is_long for each in parameters) and (
        not item.name.startswith("test_a_target_that_is_deleted")
    ):
        item.add_marker(pytest.mark.long(seconds=8))


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Server]:
    with serial_broker() as proxy:
        yield Server(proxy.broker.servers, proxy.stall, proxy)


@pytest.fixture(scope="session")
def apache_kafka_server(apache_kafka: ApacheKafka) -> Server:
    proxy = apache_kafka.proxy
    return Server(proxy.broker.servers, proxy.stall, proxy)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of S3 behind a proxy, with the environment of a host that may use it."""
    with faulty_proxy(s3_server) as (port, faults):
        for name, value in environment_of(port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(DATA_URLS_VARIABLE, f"s3://{BUCKET}")
        yield Server(f"http://127.0.0.1:{port}", faults.stall, (s3_server, faults))


@pytest.fixture(scope="session")
def webhook_server() -> Iterator[Server]:
    with running_webhook() as webhook, stalling_proxy(*webhook.server_address) as (port, stall):
        yield Server(f"http://127.0.0.1:{port}", stall, webhook)


@pytest.fixture(scope="session")
def postgres(database_url: str) -> Iterator[Server]:
    address = urlsplit(database_url)
    with stalling_proxy(address.hostname or "127.0.0.1", address.port or 5432) as (port, stall):
        login = address.netloc.rpartition("@")[0]
        yield Server(address._replace(netloc=f"{login}@127.0.0.1:{port}").geturl(), stall)


@pytest.fixture
def new_target(request: pytest.FixtureRequest, tmp_path: Path) -> NewTarget:
    """Makes targets."""

    def make(kind: type[Target], folder: Path) -> Target:
        servers = {name: request.getfixturevalue(name) for name in kind.servers}
        target = kind(Place(folder, f"t{os.getpid()}_{time.monotonic_ns()}", servers, tmp_path))
        target.create()
        return target

    return make


@pytest.fixture(params=TARGETS, ids=lambda kind: kind.__name__)
def target(request: pytest.FixtureRequest, new_target: NewTarget, tmp_path: Path) -> Target:
    return new_target(request.param, tmp_path)
