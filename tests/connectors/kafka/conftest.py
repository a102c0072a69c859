"""The brokers that the tests of Kafka share: the small server, and in the long suite Apache Kafka as well."""

from collections.abc import Iterator

import pytest

from tests.apache_kafka import APACHE, broker_of
from tests.kafka import Broker, running_broker
from tests.kafka_proxy import Proxy, proxied_broker


@pytest.fixture(scope="session")
def small_broker() -> Iterator[Broker]:
    with running_broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def small_proxy() -> Iterator[Proxy]:
    with proxied_broker() as proxy:
        yield proxy


@pytest.fixture(scope="session", params=["small", APACHE])
def broker(request: pytest.FixtureRequest) -> Broker:
    return broker_of(request)


@pytest.fixture(params=["small", APACHE])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    proxy: Proxy
    if request.param == "apache":
        proxy = request.getfixturevalue("apache_kafka").proxy
    else:
        proxy = request.getfixturevalue("small_proxy")
    yield proxy
    proxy.rule = lambda api, body: None
