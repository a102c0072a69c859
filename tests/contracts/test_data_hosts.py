"""A definer's own listener receives no secret: hosts and secrets are checked at each connect, not by the form alone.

The environment is that of a job under the console. The team `shop` has a connection with the secret `shop-password`.
A definer of another pipeline, or of another host, writes a reference to that secret beside an address of its own.
"""

import base64
import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from examples.pipelines.enrichment import CustomerLookup
from runtime.access.data_hosts import hosts_of, is_listed
from runtime.connectors.kafka.connection import KafkaConnection, check_connection
from runtime.connectors.kafka.registry import SchemaRegistry
from runtime.connectors.postgres.connection import connect
from runtime.connectors.postgres.sink import PostgresSink
from runtime.connectors.sinks.webhook import Webhook
from runtime.errors import JobRejected, WeirError
from runtime.ports import OutputEpoch
from spark_jobs.sinks.postgres_table import PostgresTable
from tests.schema_registry import running_registry
from tests.waiting import until
from tests.webhook_server import running_webhook

SECRET = "hunter2-of-the-shop"
REFERENCE = "${secret:shop-password}"
ORDERS = pa.record_batch({"customer": [1, 2]})
#: The request of a Postgres server for the password as plain text (AuthenticationCleartextPassword).
ASK_FOR_PASSWORD = b"R" + (8).to_bytes(4, "big") + (3).to_bytes(4, "big")


class Listener:
    """A server of the definer, which asks like a Postgres and keeps all bytes that arrive."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.connections = 0
        self.received = b""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                self.connections += 1
                with peer, contextlib.suppress(OSError):
                    peer.settimeout(2)
                    first = peer.recv(65536)
                    if first[4:8] == (80877103).to_bytes(4, "big"):  # SSLRequest
                        peer.sendall(b"N")
                        first = peer.recv(65536)
                    self.received += first
                    if first[:1] == b"\0":
                        peer.sendall(ASK_FOR_PASSWORD)
                    self.received += peer.recv(65536)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture(autouse=True)
def _under_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = {"address": "postgresql://app:${secret:shop-password}@shop.example.org/shop"}
    monkeypatch.setenv("WEIR_SECRET_SHOP_PASSWORD", SECRET)
    monkeypatch.setenv("WEIR_DATA_HOSTS", "allowed.example.org")
    monkeypatch.setenv("WEIR_CONNECTIONS", json.dumps({"shop": shop}))


def by_enrichment(port: int) -> None:
    CustomerLookup(f"postgresql://app:{REFERENCE}@127.0.0.1:{port}/shop?sslmode=disable", "customers")(ORDERS)


def by_postgres(port: int) -> None:
    connect(f"postgresql://app:{REFERENCE}@127.0.0.1:{port}/shop?sslmode=disable")


def by_postgres_text(port: int) -> None:
    connect(f"host=127.0.0.1 port={port} user=app password={REFERENCE} dbname=shop sslmode=disable")


def by_postgres_address(port: int) -> None:
    """`hostaddr` is where libpq connects, whatever `host` is."""
    connect(f"host=allowed.example.org hostaddr=127.0.0.1 port={port} user=app password={REFERENCE} sslmode=disable")


def by_name_of_database(port: int) -> None:
    """Some functions of libpq take an address as the name of a database."""
    inner = f"postgresql://app@127.0.0.1:{port}/shop?sslmode=disable"
    connect(f"host=allowed.example.org dbname='{inner}' user=app password={REFERENCE} connect_timeout=2")


def by_second_postgres(port: int) -> None:
    connect(f"postgresql://app:{REFERENCE}@allowed.example.org:1,127.0.0.1:{port}/shop?sslmode=disable")


def by_webhook(port: int) -> None:
    hook = Webhook(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {REFERENCE}"}, timeout_s=3)
    hook.write_epoch(OutputEpoch(source="job/sink", number=1, job="1", sink="sink", checkpoint=1, rows=2), [ORDERS])


def by_registry(port: int) -> None:
    options = {"basic.auth.user.info": f"app:{REFERENCE}"}
    SchemaRegistry(f"http://127.0.0.1:{port}", options).open().register("orders", '"string"', "AVRO")


def by_second_registry(port: int) -> None:
    options = {"basic.auth.user.info": f"app:{REFERENCE}"}
    registry = SchemaRegistry(f"http://allowed.example.org:1,http://127.0.0.1:{port}", options)
    registry.open().register("orders", '"string"', "AVRO")


def by_kafka(port: int) -> None:
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "app"}
    options |= {"sasl.password": REFERENCE, "socket.timeout.ms": "2000"}
    connection = KafkaConnection(f"127.0.0.1:{port}", options)
    connection.list_topics(connection.consumer({"group.id": "a"}), "topics")


ATTACKS = [
    by_enrichment, by_postgres, by_postgres_text, by_postgres_address, by_name_of_database, by_second_postgres,
    by_webhook, by_registry, by_second_registry, by_kafka,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack.__name__))
@pytest.mark.parametrize("allowed", [False, True], ids=["any host", "a host that jobs may use"])
def test_a_listener_of_the_definer_receives_no_secret(
    attack: Callable[[int], None], allowed: bool, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that jobs may use is not the host that the secret is for."""
    if allowed:
        monkeypatch.setenv("WEIR_DATA_HOSTS", "allowed.example.org 127.0.0.1")
    with pytest.raises(Exception) as error:  # noqa: PT011 - any, so that a leak is the first failure
        attack(listener.port)
    for secret in (SECRET.encode(), base64.b64encode(f"app:{SECRET}".encode())):
        assert secret not in listener.received, "the secret has left"
    assert listener.connections == 0
    assert isinstance(error.value, JobRejected)
    assert SECRET not in str(error.value)


# ------------------------------------------------------------ hosts without secrets


def post(url: str, **settings: Any) -> None:
    epoch = OutputEpoch(source="job/sink", number=1, job="1", sink="sink", checkpoint=1, rows=2)
    Webhook(url, timeout_s=3, **settings).write_epoch(epoch, [ORDERS])


REACHES = [
    lambda port: connect(f"postgresql://app@127.0.0.1:{port}/shop?sslmode=disable&connect_timeout=2"),
    lambda port: post(f"http://127.0.0.1:{port}/"),
    lambda port: SchemaRegistry(f"http://127.0.0.1:{port}").open().register("orders", '"string"', "AVRO"),
    lambda port: KafkaConnection(f"127.0.0.1:{port}", {}).metadata("brokers"),
    lambda port: PostgresTable(f"postgresql://app@127.0.0.1:{port}/shop?sslmode=disable", "orders").prepare(),
]


@pytest.mark.parametrize("reach", REACHES, ids=["postgres", "webhook", "registry", "kafka", "postgres of Spark"])
def test_a_job_reaches_listed_hosts_only(
    reach: Callable[[int], object], listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a definer reads what answers on the inner network: databases, metadata of the cloud, the console's Redis."""
    with pytest.raises(
        JobRejected, match=rf"127\.0\.0\.1:{listener.port} is not a host that jobs may use.*WEIR_DATA_HOSTS"
    ):
        reach(listener.port)
    assert listener.connections == 0
    monkeypatch.setenv("WEIR_DATA_HOSTS", f"127.0.0.1:{listener.port}")
    with contextlib.suppress(WeirError):
        reach(listener.port)
    until(lambda: listener.connections > 0)


@pytest.mark.parametrize(
    ("listed", "host", "is_allowed"),
    [
        ("db.example.org", "db.example.org:5432", True),
        ("DB.Example.org", "db.example.org.:5432", True),
        ("db.example.org:5432", "db.example.org:5432", True),
        ("db.example.org:5432", "db.example.org:6379", False),
        ("example.org", "db.example.org:5432", False),
        ("*.example.org", "db.example.org:5432", True),
        ("*.example.org", "example.org:5432", False),
        ("*.example.org", "evil-example.org:5432", False),
        ("[::1]:9092 a", "[::1]:9092", True),
        ("[::1]", "[::1]:9092", True),
        ("", "db:5432", False),
        ("a b", ":5432", False),
        ("a b", "/run/postgresql:5432", False),
    ],
)
def test_hosts_are_listed_by_name_port_and_domain(
    listed: str, host: str, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_DATA_HOSTS", listed)
    assert is_listed(host) is is_allowed


def test_an_author_without_the_console_has_no_limit(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_DATA_HOSTS")
    monkeypatch.delenv("WEIR_CONNECTIONS")
    with contextlib.suppress(WeirError):
        by_postgres(listener.port)
    assert SECRET.encode() in listener.received


# ------------------------------------------------------------ named connections


def name_connections(monkeypatch: pytest.MonkeyPatch, **connections: dict[str, Any]) -> None:
    monkeypatch.setenv("WEIR_CONNECTIONS", json.dumps(connections))
    monkeypatch.setenv("WEIR_DATA_HOSTS", "")


def test_a_named_connection_brings_its_host_and_its_secret(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = urlsplit(database_url)
    monkeypatch.setenv("WEIR_SECRET_SHOP_PASSWORD", place.password or "")
    address = database_url.replace(f":{place.password}@", f":{REFERENCE}@")
    name_connections(monkeypatch, shop={"address": address, "options": {"application_name": "shop"}})
    with connect("${connection:shop}") as connection:
        assert connection.execute("SHOW application_name").fetchone() == ("shop",)


def test_the_host_of_a_named_connection_takes_its_secret_in_other_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_webhook() as server:
        name_connections(monkeypatch, hook={"address": f"{server.url}/orders", "options": {"X-Key": REFERENCE}})
        post("${connection:hook}")
        post(f"{server.url}/other", headers={"Authorization": f"Bearer {REFERENCE}"})
        assert server.at("/orders").headers[0]["X-Key"] == SECRET
        assert server.at("/other").headers[0]["Authorization"] == f"Bearer {SECRET}"


def test_a_registry_by_a_named_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_registry() as registry:
        registry.user = f"app:{SECRET}"
        options = {"basic.auth.user.info": f"app:{REFERENCE}"}
        name_connections(monkeypatch, registry={"address": registry.url, "options": options})
        assert SchemaRegistry("${connection:registry}").open().register("orders", '"string"', "AVRO") == 1


def test_servers_of_kafka_by_a_named_connection(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    name_connections(
        monkeypatch, events={"address": f"127.0.0.1:{listener.port}", "options": {"socket.timeout.ms": "900"}}
    )
    connection = KafkaConnection("${connection:events}", {"linger.ms": "5"})
    with pytest.raises(WeirError, match=rf"Kafka at 127\.0\.0\.1:{listener.port}"):
        connection.list_topics(connection.consumer({"group.id": "a"}), "topics")
    assert listener.connections > 0


@pytest.mark.parametrize("text", ["${connection:other}", "${connection:}", "${connection:shop}/other"])
def test_a_connection_of_another_pipeline_is_refused_before_anything_starts(text: str) -> None:
    for check in (PostgresSink(text, "t").check, Webhook(text).check, SchemaRegistry(text).check):
        with pytest.raises(JobRejected, match=r"no connection|whole value|put the login"):
            check()
    with pytest.raises(JobRejected, match=r"no connection|whole value"):
        check_connection(text, {})


def test_a_version_is_refused_if_its_pipeline_has_no_such_connection() -> None:
    command = [sys.executable, "-m", "spark_jobs", "compile", "--pipeline", "enrichment", "--parallelism", "1"]
    params = json.dumps({"database_url": "${connection:examples}"})
    process = subprocess.run(command, input=params, capture_output=True, text=True, check=False)
    error = json.loads(process.stdout)["error"]
    assert (process.returncode, error["code"]) == (3, "unknown-connection")
    assert "it has: shop" in error["detail"]


# ------------------------------------------------------------ options of clients


@pytest.mark.parametrize(
    "option",
    [
        "hostaddr=10.0.0.1", "service=shop", "servicefile=/x", "passfile=/home/other/.pgpass", "sslkey=/home/other/key",
        "sslcert=/x", "sslkeylogfile=/tmp/x", "requirepeer=x", "krbsrvname=x",
    ],
)  # fmt: skip
def test_parameters_of_libpq_come_from_a_list(option: str) -> None:
    with pytest.raises(JobRejected, match=r"may not choose the parameter|no address of a Postgres"):
        PostgresSink(f"postgresql://app@allowed.example.org/shop?{option}", "t").check()
    with pytest.raises(JobRejected, match=r"may not choose the parameter|no address of a Postgres"):
        connect(f"host=allowed.example.org {option}")


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths", "sasl.kerberos.kinit.cmd", "sasl.oauthbearer.token.endpoint.url", "ssl.key.location",
        "ssl.engine.location", "ssl.providers", "enable.ssl.certificate.verification", "debug", "Plugin.Library.Paths",
        "ssl.endpoint.identification.algorithm", "https.ca.location", "test.mock.num.brokers", "topic.blacklist",
    ],
)  # fmt: skip
def test_options_of_librdkafka_come_from_a_list(name: str) -> None:
    with pytest.raises(JobRejected, match=r"no option that a job may choose") as error:
        KafkaConnection("allowed.example.org:9092", {name: "1"})
    assert error.value.field == f"options.{name}"


def test_the_login_of_a_named_connection_cannot_be_weakened(monkeypatch: pytest.MonkeyPatch) -> None:
    name_connections(monkeypatch, events={"address": "events.example.org:9092"})
    with pytest.raises(JobRejected, match="belongs to the connection"):
        KafkaConnection("${connection:events}", {"security.protocol": "plaintext"})


@pytest.mark.parametrize(
    "servers",
    [
        "allowed.example.org#.evil.com:9092", "allowed.example.org?.evil.com:9092", "u@allowed.example.org:9092",
        "allowed.example.org:9092,allowed.example.org#.evil.com:9092", "allowed.example.org\\.evil.com:9092",
        "allowed.example.org:9092,evil.com:9092", "[::1]#.evil.com:9092", "allowed.example.org%2e:9092",
    ],
)  # fmt: skip
def test_servers_of_kafka_are_read_as_librdkafka_reads_them(servers: str) -> None:
    """librdkafka takes everything up to the last colon as the name."""
    with pytest.raises(JobRejected) as error:
        check_connection(servers, {})
    assert error.value.field == "servers"
    check_connection("allowed.example.org:9092, allowed.example.org:9093", {})


@pytest.mark.parametrize(
    "address", ["x://good?@evil/db", "x://good#@evil", "x://good\\@evil", "good#.evil:9092", "a b:1"]
)
def test_an_address_that_clients_read_differently_has_no_host(address: str) -> None:
    with pytest.raises(JobRejected, match="must name its host"):
        hosts_of(address)


# ------------------------------------------------------------ references within addresses


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://u@{REFERENCE}x/d", f"postgresql://u@allowed.example.org/{REFERENCE}x",
        f"postgresql://u@allowed.example.org:{REFERENCE}/d", f"host={REFERENCE}x dbname=d",
        f"host=allowed.example.org dbname={REFERENCE}", f"host=allowed.example.org port={REFERENCE} dbname=d",
        f"postgresql://u@allowed.example.org/?dbname={REFERENCE}",
    ],
)  # fmt: skip
def test_an_address_of_postgres_has_no_secret_that_errors_print(
    address: str,
) -> None:
    acts: list[Callable[[], object]] = [PostgresSink(address, "t").check, lambda: connect(address)]
    for act in acts:
        with pytest.raises(JobRejected, match=r"takes no secret|no address of a Postgres") as error:
            act()
        assert SECRET not in str(error.value)


@pytest.mark.parametrize("url", [f"http://{REFERENCE}/", f"http://x{REFERENCE}.org/", f"{REFERENCE}.evil.org/"])
def test_an_address_of_a_webhook_has_no_secret_as_its_host(url: str) -> None:
    acts: list[Callable[[], object]] = [Webhook(url).check, lambda: post(url)]
    for act in acts:
        with pytest.raises(JobRejected, match="takes no secret") as error:
            act()
        assert SECRET not in str(error.value)
