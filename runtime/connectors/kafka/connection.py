"""The connection to a Kafka cluster: its options, its clients, and its errors in the terms of the runtime.

`ask` sends single requests by kafka-python, where librdkafka offers no call, or an unsafe call:

1. EndTxn of another producer's transaction has no call in librdkafka.
2. Requests about consumer groups and the ids of topics need its admin client. An admin client that asks while a broker
   is away can end the process when the broker returns (librdkafka 2.16: SIGSEGV, or an assertion of `enq_once`).

librdkafka reports a refused login by a callback, while the call that needed the login only times out. A connection
therefore remembers the last refusal and puts it before the time-out.

A fatal error of a producer, such as that of a fenced one, leaves the next call that polls as a `SystemError`, whose
cause is the error of librdkafka.
"""

import logging
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from runtime.access.data_hosts import hosts_of
from runtime.access.secrets import check_hosts, check_references, is_connection, named_connection, resolve
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway, WeirError
from runtime.libraries import import_library

#: of `ask`
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MAX_RESPONSE_BYTES: Final = 1 << 26
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
_MISSING: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION")
TOO_LARGE: Final = ("MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "RECORD_LIST_TOO_LARGE")
_FENCED: Final = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
#: The call has timed out, perhaps because of a refused login.
_TIME_OUTS: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "_MSG_TIMED_OUT", "REQUEST_TIMED_OUT")
#: Of librdkafka. Codes of the protocol are temporary if kafka-python repeats their requests.
#: After a lost connection, it knows no leader of a partition that it has listed, or drops the broker.
_AWAY: Final = (
    *_TIME_OUTS, "_TIMED_OUT_QUEUE", "_WAIT_COORD", "_WAIT_CACHE", "_ISR_INSUFF", "BROKER_NOT_AVAILABLE",
    "_UNKNOWN_PARTITION", "_DESTROY_BROKER",
)  # fmt: skip


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
        connection = named_connection("servers", servers)
        self.servers = servers if connection is None else connection.address
        hosts = _hosts(self.servers)
        self._resolved = {name: resolve(f"options.{name}", value, hosts) for name, value in options.items()}
        self._resolved |= {} if connection is None else connection.options
        self._library = import_library("confluent_kafka", "kafka")
        self.errors = (self._library.KafkaException, SystemError)  #: of calls of librdkafka
        self._refusal: Any = None  #: the last error of a login
        timeout_ms = int(self._resolved.get("socket.timeout.ms", _REQUEST_TIMEOUT_MS))
        self.timeout_s = min(timeout_ms, _REQUEST_TIMEOUT_MS) / 1_000

    def consumer(self, options: Mapping[str, Any]) -> Any:
        """A consumer that joins no group.

        Its end waits for a commit under way until the session of a member would end: 45 s by default, and also when the
        garbage collector drops it.
        """
        session_ms = int(self.timeout_s * 1_000)
        session = {"session.timeout.ms": session_ms, "heartbeat.interval.ms": max(1, session_ms // 3)}
        return self._create(self._library.Consumer, {**session, **options})

    def producer(self, options: Mapping[str, Any]) -> Any:
        """A producer that creates no topic: after a deletion it would go on into an empty one."""
        return self._create(self._library.Producer, {"allow.auto.create.topics": False, **options})

    def _create(self, kind: Any, options: Mapping[str, Any]) -> Any:
        """A client with these `options`, which override the options of the author.

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
            return kind({**fixed, **self._resolved, **options})
        except self._library.KafkaException as error:
            raise JobRejected("bad-option", "options", error.args[0].str()) from error

    @property
    def can_ask(self) -> bool:
        """Whether `ask` can log in: it has the mechanisms PLAIN and SCRAM."""
        protocol = self._resolved.get("security.protocol", "plaintext").lower()
        return not protocol.startswith("sasl") or sasl_mechanism(self._resolved) in SASL_MECHANISMS

    def ask(self, what: str, request: Any, server: str | None = None) -> Any:
        """The answer of the broker `server` to a request of kafka-python. None: the first bootstrap server with one.

        Raises:
            JobRejected: the broker refuses the login.
            TargetAway: no broker answers.
            EnvironmentFailure: the certificate of the broker is refused, or the server is no such broker.
        """
        errors = import_library("kafka.errors", "kafka")
        refused = errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError
        options, failure = self._request_options(), OSError("no broker answers")
        for each in [server] if server else self.servers.split(","):
            try:
                return self._send(request, {**options, "bootstrap_servers": each})
            except errors.RetriableError as error:
                failure = error
            except (*refused, KeyError, ValueError) as error:  # the last two: a malformed or wrong answer of SCRAM
                detail = f"the login failed: {error}: check the credentials in `options`"
                raise JobRejected("kafka-refused", "options", f"Kafka at {each}: {detail}") from error
            except errors.KafkaError as error:
                raise EnvironmentFailure(f"Kafka at {each}: {what}: {error}") from error
        kind = EnvironmentFailure if isinstance(failure.__context__, ssl.SSLError) else TargetAway
        raise kind(f"Kafka at {self.servers}: {what}: {failure}") from failure

    def metadata(self, what: str, topics: Sequence[str] = ()) -> Any:
        """The answer to Metadata: brokers, and topics with their ids and error codes. Creates no topic."""
        message = import_library("kafka.protocol.metadata", "kafka").MetadataRequest
        topic_requests = [message.MetadataRequestTopic(name=topic) for topic in topics]
        return self.ask(what, message(topics=topic_requests, allow_auto_topic_creation=False, max_version=12))

    def _send(self, request: Any, options: Mapping[str, Any]) -> Any:
        """The answer to `request` over a connection of its own."""
        loop = import_library("kafka.net.selector", "kafka").NetworkSelector()
        manager = import_library("kafka.net.manager", "kafka").KafkaConnectionManager(loop, **options)
        try:
            connection = manager.get_connection("bootstrap-0", refresh_metadata_on_err=False)
            return loop.run(manager.wait_for, connection.send_request(request), self.timeout_s * 1_000)
        finally:
            manager.close()
            loop.close()

    def _request_options(self) -> dict[str, Any]:
        """The options of kafka-python for those of librdkafka. Raises JobRejected for a bad certificate or key."""
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # failed calls report a lost connection
        of, timeout_ms = self._resolved.get, int(self.timeout_s * 1_000)
        protocol, mechanism = of("security.protocol", "plaintext").upper(), sasl_mechanism(self._resolved)
        user = of("sasl.username", "")
        return {
            "client_id": "weir",
            "receive_message_max_bytes": _MAX_RESPONSE_BYTES,
            "request_timeout_ms": timeout_ms,
            "socket_connection_setup_timeout_ms": timeout_ms,
            "security_protocol": protocol,
            "ssl_context": _ssl_context(self._resolved) if protocol.endswith("SSL") else None,
            "sasl_mechanism": mechanism,
            # RFC 5802 escapes names, which kafka-python leaves to its caller
            "sasl_plain_username": user if mechanism == "PLAIN" else user.replace("=", "=3D").replace(",", "=2C"),
            "sasl_plain_password": of("sasl.password", ""),
        }

    def refusal(self, code: int, what: str) -> WeirError:
        """The exception to raise for an error code of the protocol."""
        return self.failure_of(self._library.KafkaError(code), what)

    def list_topics(self, client: Any, what: str, **which: Any) -> Any:
        """Metadata by topic; blocks for `timeout_s` at most. A refused login is known when the client is polled."""
        with self.call(what, client):
            return client.list_topics(**which, timeout=self.timeout_s).topics

    @contextmanager
    def call(self, what: str, client: Any = None) -> Iterator[None]:
        """A call of librdkafka.

        Args:
            client: is polled after an error, since a refused login is known only then.

        Raises:
            WeirError: for an error of librdkafka. An absent broker is `TargetAway`.
        """
        try:
            yield
        except self.errors as error:
            if client is not None:
                client.poll(0)
            raise self._failure(error, what) from error

    def _failure(self, error: BaseException, what: str) -> WeirError:
        """The exception to raise from one of `errors`."""
        cause = _first_cause(error) if isinstance(error, SystemError) else error
        kafka_error = cause.args[0] if cause is not None and cause.args else None
        if not isinstance(kafka_error, self._library.KafkaError):
            return EnvironmentFailure(f"Kafka at {self.servers}: {what}: {error}")
        return self.failure_of(kafka_error, what)

    def failure_of(self, error: Any, what: str) -> WeirError:
        """The exception to raise for a `KafkaError`."""
        if error.name() in _TIME_OUTS and self._refusal is not None:
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
        if name in TOO_LARGE:
            remedy = "raise max.message.bytes of the topic and the option message.max.bytes, or write smaller rows"
            return DataRejected(f"{text}: {remedy}. If each row is small, lower the option batch.size")
        if name in _FENCED:
            cause = "another one has its transactional id, or the broker has aborted its transaction after its time-out"
            return EnvironmentFailure(f"{text}: the producer is fenced: {cause}")
        return TargetAway(text) if name in _AWAY or _is_temporary(error.code()) else EnvironmentFailure(text)

    def _on_error(self, error: Any) -> None:
        """Callback of librdkafka, on the thread that polls a client."""
        if error.name() in _REFUSED:
            self._refusal = error


def _first_cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _first_cause(error.__cause__)


def _is_temporary(code: int) -> bool:
    """Whether a request with this error code of the protocol is repeated: a leader or coordinator moves or loads."""
    errors = import_library("kafka.errors", "kafka")
    return code > 0 and issubclass(errors.for_code(code), errors.RetriableError)


def sasl_mechanism(options: Mapping[str, str]) -> str:
    return options.get("sasl.mechanisms", options.get("sasl.mechanism", "GSSAPI")).upper()


def _ssl_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Raises JobRejected if a certificate or key cannot be loaded."""
    try:
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
        context.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https") != "none"
        if options.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate := options.get("ssl.certificate.location"):
            context.load_cert_chain(certificate, options.get("ssl.key.location"), options.get("ssl.key.password"))
    except (OSError, ssl.SSLError) as error:
        raise JobRejected("bad-certificate", "options", f"the certificates cannot be loaded: {error}") from error
    return context


def check_connection(servers: str, options: Mapping[str, str]) -> None:
    """Checks what a connector needs, without I/O.

    Raises:
        JobRejected: naming the field, for a malformed address or an option that a connector sets itself; naming the
            extra, for a missing library.
    """
    import_library("confluent_kafka", "kafka")
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
