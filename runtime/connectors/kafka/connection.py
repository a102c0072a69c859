"""The connection to a Kafka cluster: its options, its clients, and its errors in the terms of the runtime.

librdkafka reports a refused login by a callback, while the call that needed the login only times out. A connection
therefore remembers the last refusal and puts it before the time-out.
"""

import errno
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLError
from typing import Any, Final, TypeVar

from runtime.connectors.kafka.wire import SASL_MECHANISMS, KafkaWire, sasl_mechanism
from runtime.data_hosts import hosts_of
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway, WeirError
from runtime.libraries import import_library
from runtime.secrets import check_hosts, check_references, is_connection, named_connection, resolve

T = TypeVar("T")
_REQUEST_TIMEOUT_MS: Final = 10_000  #: of metadata and offset requests, unless `socket.timeout.ms` is smaller
_OWN_OPTIONS: Final = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "metadata.broker.list",
        "statistics.interval.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
#: Options of librdkafka that a job may choose; a named connection may have any. Others load code
#: (`plugin.library.paths`), run commands (`sasl.kerberos.kinit.cmd`), send secrets elsewhere
#: (`sasl.oauthbearer.token.endpoint.url`), read files of other users (`ssl.key.location`) or skip certificates.
_OPTIONS: Final = frozenset(
    {
        "batch.num.messages", "batch.size", "broker.address.family", "broker.address.ttl", "check.crcs",
        "client.dns.lookup", "client.rack", "compression.codec", "compression.level", "compression.type",
        "connections.max.idle.ms", "delivery.timeout.ms", "fetch.error.backoff.ms", "fetch.max.bytes",
        "fetch.message.max.bytes", "fetch.min.bytes", "fetch.queue.backoff.ms", "fetch.wait.max.ms",
        "heartbeat.interval.ms", "linger.ms", "max.in.flight", "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes", "max.poll.interval.ms", "message.max.bytes", "message.send.max.retries",
        "message.timeout.ms", "metadata.max.age.ms", "partitioner", "queue.buffering.max.kbytes",
        "queue.buffering.max.messages", "queue.buffering.max.ms", "queued.max.messages.kbytes",
        "queued.min.messages", "receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms",
        "request.timeout.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms", "sasl.mechanism",
        "sasl.mechanisms", "sasl.password", "sasl.username", "security.protocol", "session.timeout.ms",
        "socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.nagle.disable",
        "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms", "ssl.ca.location",
        "ssl.ca.pem", "ssl.certificate.pem", "ssl.key.password", "ssl.key.pem", "sticky.partitioning.linger.ms",
        "topic.metadata.refresh.fast.interval.ms", "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
    }
)  # fmt: skip
_SERVER: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_SECURITY_OPTION: Final = re.compile(r"(?:sasl|security|ssl)\.")
_SECRET_OPTION: Final = re.compile(r"password|secret|\.key\.pem$")
_REFERENCE: Final = re.compile(r"\$\{secret:[^}]*\}")

_REFUSED: Final = (
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "ILLEGAL_SASL_STATE",
    "UNSUPPORTED_SASL_MECHANISM",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)
_MISSING: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION")
_TOO_LARGE: Final = ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE")
_AWAY: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_MSG_TIMED_OUT", "REQUEST_TIMED_OUT")
_AWAY_TOO: Final = ("BROKER_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE", "COORDINATOR_NOT_AVAILABLE", "NETWORK_EXCEPTION")


class KafkaConnection:
    """Creates the clients of a subtask or committer, with the secrets resolved on this host.

    Args:
        servers: bootstrap servers, `host:port` separated by commas, or `${connection:NAME}`.
        options: further options of librdkafka. Values may contain `${secret:NAME}`.

    Raises:
        JobRejected: the job may not use a server, an option or a secret, or a secret is not set on this host. Brokers
            that the servers name are not checked.
    """

    def __init__(self, servers: str, options: Mapping[str, str]) -> None:
        check_connection(servers, options)
        named = named_connection("servers", servers)
        self.servers = servers if named is None else named.address
        hosts = _hosts(self.servers)
        self._resolved = {name: resolve(f"options.{name}", value, hosts) for name, value in options.items()}
        self._resolved |= {} if named is None else named.options
        self._library = import_library("confluent_kafka", "kafka")
        self._refusal: Any = None  #: the last error of a login
        timeout_ms = int(self._resolved.get("socket.timeout.ms", _REQUEST_TIMEOUT_MS))
        self.timeout_s = min(timeout_ms, _REQUEST_TIMEOUT_MS) / 1_000

    def consumer(self, own: Mapping[str, Any]) -> Any:
        return self._create(self._library.Consumer, own)

    def producer(self, own: Mapping[str, Any]) -> Any:
        return self._create(self._library.Producer, own)

    def _create(self, kind: Any, own: Mapping[str, Any]) -> Any:
        """A client with the options `own`, which override the options of the author.

        Raises:
            JobRejected: librdkafka refuses an option.
        """
        fixed = {
            "bootstrap.servers": self.servers,
            "client.id": "weir",
            "error_cb": self._on_error,
            "logger": logging.getLogger("weir.kafka"),
            "log_level": 2,  # a lost connection is logged twice a second; failed calls report it
        }
        try:
            return kind({**fixed, **self._resolved, **own})
        except self._library.KafkaException as error:
            raise JobRejected("bad-option", "options", error.args[0].str()) from error

    def wire(self, place: tuple[str, int] | None = None) -> KafkaWire:
        """A connection of our own to the broker at `place`. None: the first bootstrap server that answers.

        Raises:
            OSError: no broker answers.
        """
        if place is not None:
            return KafkaWire(*place, self._resolved, self.timeout_s)
        failure = OSError(errno.EHOSTUNREACH, "no broker answers")
        for server in self.servers.split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                return KafkaWire(host.strip("[]"), int(port), self._resolved, self.timeout_s)
            except OSError as error:
                failure = error
        raise failure

    @property
    def has_wire(self) -> bool:
        """Whether `wire` can log in: it has the mechanisms PLAIN and SCRAM."""
        protocol = self._resolved.get("security.protocol", "plaintext").lower()
        return not protocol.startswith("sasl") or sasl_mechanism(self._resolved) in SASL_MECHANISMS

    def ask(self, what: str, request: Callable[[KafkaWire], T], place: tuple[str, int] | None = None) -> T:
        """The result of `request` at the broker at `place`. None: the first bootstrap server that answers.

        Raises:
            TargetAway: no broker answers.
            EnvironmentFailure: the certificate of the broker is refused.
        """
        try:
            with self.wire(place) as wire:
                return request(wire)
        except OSError as error:
            kind = EnvironmentFailure if isinstance(error, SSLError) else TargetAway
            raise kind(f"Kafka at {self.servers}: {what}: {error}") from error

    def refusal(self, code: int, what: str) -> WeirError:
        """The exception to raise for an error code of the protocol."""
        return self.failure_of(self._library.KafkaError(code), what)

    def list_topics(self, client: Any, what: str, **which: Any) -> Any:
        """Metadata by topic; blocks for `timeout_s` at most. A refused login is known when the client is polled."""
        try:
            return client.list_topics(**which, timeout=self.timeout_s).topics
        except self._library.KafkaException as error:
            client.poll(0)
            raise self.failure(error, what) from error

    def failure(self, error: BaseException, what: str) -> WeirError:
        """The exception to raise from `error` of librdkafka. An absent broker is `TargetAway`."""
        found = error.args[0] if error.args else None
        if not isinstance(found, self._library.KafkaError):
            return EnvironmentFailure(f"Kafka at {self.servers}: {what}: {error}")
        return self.failure_of(found, what)

    def failure_of(self, error: Any, what: str) -> WeirError:
        """As `failure`, for a `KafkaError`."""
        if error.name() in _AWAY and self._refusal is not None:
            error = self._refusal
        name, text = error.name(), f"Kafka at {self.servers}: {what}: {error.str()} ({error.name()})"
        if name in _REFUSED:
            remedy = "check the credentials and the rights of this user in `options`"
            return JobRejected("kafka-refused", "options", f"{text}: {remedy}")
        if name in _MISSING:
            return JobRejected("missing-topic", "topics", f"{text}: create the topic, or correct its name")
        if name == "INVALID_TRANSACTION_TIMEOUT":
            remedy = "lower it, or raise transaction.max.timeout.ms of the brokers"
            return JobRejected("bad-timeout", "transaction_timeout_ms", f"{text}: {remedy}")
        if name in _TOO_LARGE:
            remedy = "raise max.message.bytes of the topic and the option message.max.bytes, or write smaller rows"
            return DataRejected(f"{text}: {remedy}")
        return TargetAway(text) if name in _AWAY or name in _AWAY_TOO else EnvironmentFailure(text)

    def _on_error(self, error: Any) -> None:
        """Callback of librdkafka, on the thread that polls a client."""
        if error.name() in _REFUSED:
            self._refusal = error


def check_connection(servers: str, options: Mapping[str, str]) -> None:
    """Raises JobRejected, naming the field, for a malformed address or an option that a connector sets itself."""
    check_references("servers", servers)
    places = [] if is_connection(servers) else [place.strip() for place in servers.split(",")]
    if not all(map(_SERVER.fullmatch, places)):
        raise JobRejected("bad-servers", "servers", f"must be host:port, separated by commas, not {servers!r}")
    timeout = options.get("socket.timeout.ms", "1000")
    if not timeout.isdecimal() or not int(timeout):
        raise JobRejected("bad-option", "options.socket.timeout.ms", f"must be milliseconds, not {timeout!r}")
    for name, value in options.items():
        field = f"options.{name}"
        if name in _OWN_OPTIONS:
            raise JobRejected("reserved-option", field, "is set by the connector")
        if name not in _OPTIONS:
            raise JobRejected("bad-option", field, "is no option that a job may choose; a named connection may have it")
        if _SECURITY_OPTION.match(name) and is_connection(servers):
            raise JobRejected("bad-option", field, "belongs to the connection that `servers` names")
        if not isinstance(value, str):
            raise JobRejected("bad-option", field, f"must be text, not {value!r}")
        check_references(field, value)
        if _SECRET_OPTION.search(name) and _REFERENCE.fullmatch(value) is None:
            advice = "write ${secret:NAME}, and set WEIR_SECRET_NAME where the job runs"
            raise JobRejected("literal-secret", field, f"is a secret: {advice}")
    if places:
        check_hosts("servers", _hosts(servers))


def _hosts(servers: str) -> list[str]:
    """The hosts of the servers, each read for itself as librdkafka does."""
    return [host for server in servers.split(",") for host in hosts_of(server, "servers")]


def check_topics(field: str, topics: Sequence[str]) -> None:
    """Raises JobRejected unless each name is a legal, distinct topic name (Kafka's `internals.Topic`)."""
    if not topics:
        raise JobRejected("bad-topic", field, "must name at least one topic")
    for topic in topics:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in (".", ".."):
            raise JobRejected("bad-topic", field, f"{topic!r} is no name of a topic")
    if len(set(topics)) < len(topics):
        raise JobRejected("bad-topic", field, "names a topic twice")
