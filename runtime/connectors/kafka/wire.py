"""A connection that speaks the Kafka protocol, for requests that librdkafka does not offer, or offers unsafely.

1. EndTxn of another producer's transaction has no call in librdkafka.
2. Requests about consumer groups and the ids of topics need its admin client. An admin client that asks while a broker
   is away can end the process when the broker returns (librdkafka 2.16: SIGSEGV, or an assertion of `enq_once`).

Versions: FindCoordinator 1, EndTxn 1, OffsetFetch 2, ListGroups 0, DeleteGroups 0, Metadata 4, ApiVersions 0,
SaslHandshake 1, SaslAuthenticate 0. Brokers from 1.1 to 4.x accept them. Ids of topics: Metadata 12, from Kafka 3.1 on.
Security: PLAINTEXT, SSL, and SASL with PLAIN or SCRAM (RFC 5802), by the options of librdkafka.
"""

import base64
import errno
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import Final, Self
from uuid import UUID

from runtime.errors import EnvironmentFailure, JobRejected

METADATA: Final = 3
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
END_TXN: Final = 26
SASL_AUTHENTICATE: Final = 36
DELETE_GROUPS: Final = 42
SASL_MECHANISMS: Final[Mapping[str, str]] = {"PLAIN": "", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
GROUP_KEY: Final = 0  #: key types of FindCoordinator
TRANSACTION_KEY: Final = 1
_MAX_RESPONSE_BYTES: Final = 1 << 26
_METADATA_WITH_IDS: Final = 12  #: version


class KafkaWire:
    """A connection to a broker. Not thread-safe.

    Args:
        host, port: address of the broker.
        options: options of librdkafka, resolved.
        timeout_s: of connecting and of each answer.

    Raises:
        OSError: the broker is absent, does not answer, or has closed the connection.
        JobRejected: the broker refuses the login.
    """

    def __init__(self, host: str, port: int, options: Mapping[str, str], timeout_s: float) -> None:
        self._correlation = 0
        self._place = f"Kafka at {host}:{port}"
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            protocol = options.get("security.protocol", "plaintext").lower()
            if protocol.endswith("ssl"):
                name = None if options.get("ssl.endpoint.identification.algorithm", "https") == "none" else host
                self._socket = _ssl_context(options, name is not None).wrap_socket(self._socket, server_hostname=host)
            if protocol.startswith("sasl"):
                self._login(options)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def find_coordinator(self, key: str, key_type: int) -> tuple[int, str, int]:
        """Error code, host and port of the coordinator of a transactional id or a consumer group."""
        answer = _Reader(self._request(FIND_COORDINATOR, 1, _text(key) + bytes([key_type])))
        answer.skip(4)  # throttle time
        error = answer.int16()
        answer.text()
        answer.skip(4)  # id of the broker
        return error, answer.text(), answer.int32()

    def end_transaction(self, transactional_id: str, producer: int, epoch: int, *, commit: bool) -> int:
        """The error code of EndTxn."""
        answer = _Reader(
            self._request(END_TXN, 1, _text(transactional_id) + struct.pack(">qh?", producer, epoch, commit))
        )
        answer.skip(4)
        return answer.int16()

    def committed_offset(self, group: str, topic: str, partition: int) -> tuple[int, int]:
        """Error code, and the offset of the group; -1: none. Open transactions do not count and are not waited for."""
        place = struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, partition)
        answer = _Reader(self._request(OFFSET_FETCH, 2, _text(group) + place))
        offset, error = -1, 0
        for _ in range(answer.int32()):
            answer.text()
            for _ in range(answer.int32()):
                answer.skip(4)
                offset = answer.int64()
                answer.text()
                error = answer.int16()
        return answer.int16() or error, offset

    def groups(self) -> tuple[int, list[str]]:
        """Error code, and the names of the consumer groups that this broker coordinates."""
        answer = _Reader(self._request(LIST_GROUPS, 0, b""))
        error, names = answer.int16(), []
        for _ in range(answer.int32()):
            names.append(answer.text())
            answer.text()  # type of protocol
        return error, names

    def delete_group(self, group: str) -> int:
        """The error code of DeleteGroups."""
        answer = _Reader(self._request(DELETE_GROUPS, 0, struct.pack(">i", 1) + _text(group)))
        answer.skip(8)  # throttle time, number of results
        answer.text()
        return answer.int16()

    def metadata(self, topic: str | None = None) -> tuple[list[tuple[str, int]], int]:
        """The addresses of all brokers, and the error code of `topic`, which is not created."""
        topics = struct.pack(">i", 0) if topic is None else struct.pack(">i", 1) + _text(topic)
        answer = _Reader(self._request(METADATA, 4, topics + b"\0"))
        answer.skip(4)
        brokers = []
        for _ in range(answer.int32()):
            answer.skip(4)
            brokers.append((answer.text(), answer.int32()))
            answer.text()  # rack
        answer.text()  # cluster
        answer.skip(4)  # controller
        return brokers, answer.int16() if answer.int32() else 0

    def topic_ids(self, topics: Sequence[str]) -> dict[str, UUID]:
        """The ids of the topics that exist. A topic that is deleted and made anew gets another id.

        Empty for a broker before Kafka 3.1.
        """
        if self._newest_version(METADATA) < _METADATA_WITH_IDS:
            return {}
        places = b"".join(bytes(16) + _compact_text(topic) + b"\0" for topic in topics)
        body = _varint(len(topics) + 1) + places + b"\0\0\0"  # creates no topic, asks for no rights
        answer = _Reader(self._request(METADATA, _METADATA_WITH_IDS, body, flexible=True))
        answer.skip(4)
        for _ in range(answer.varint() - 1):
            answer.skip(4)
            answer.compact_text()
            answer.skip(4)
            answer.compact_text()
            answer.tags()
        answer.compact_text()
        answer.skip(4)
        return dict(found for _ in range(answer.varint() - 1) if (found := _topic_with_id(answer)) is not None)

    def _newest_version(self, api: int) -> int:
        """The newest version of a request that the broker accepts; -1: none."""
        answer = _Reader(self._request(API_VERSIONS, 0, b""))
        answer.skip(2)
        versions = {}
        for _ in range(answer.int32()):
            key, _, newest = answer.int16(), answer.int16(), answer.int16()
            versions[key] = newest
        return versions.get(api, -1)

    # ------------------------------------------------------------ login

    def _login(self, options: Mapping[str, str]) -> None:
        mechanism = sasl_mechanism(options)
        user, password = options.get("sasl.username", ""), options.get("sasl.password", "")
        if _Reader(self._request(SASL_HANDSHAKE, 1, _text(mechanism))).int16():
            raise self._refusal(f"the broker does not offer the mechanism {mechanism}")
        if mechanism == "PLAIN":
            self._authenticate(f"\0{user}\0{password}".encode())
            return
        digest = SASL_MECHANISMS[mechanism]
        nonce = secrets.token_urlsafe(24)
        first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        challenge = self._authenticate(f"n,,{first}".encode()).decode()
        found = dict(part.split("=", 1) for part in challenge.split(","))
        if not found["r"].startswith(nonce):
            raise self._refusal("the answer to the login is not for this login")
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(found["s"]), int(found["i"]))
        final = f"c=biws,r={found['r']}"
        proven = f"{first},{challenge},{final}".encode()
        key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, key).digest(), proven, digest)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
        verdict = self._authenticate(f"{final},p={proof}".encode()).decode()
        wanted = base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", digest), proven, digest)).decode()
        if verdict.startswith("e="):
            raise self._refusal(verdict[2:])
        if verdict != f"v={wanted}":
            raise self._refusal("the broker does not know the password itself")

    def _authenticate(self, data: bytes) -> bytes:
        answer = _Reader(self._request(SASL_AUTHENTICATE, 0, struct.pack(">i", len(data)) + data))
        error, reason = answer.int16(), answer.text()
        if error:
            raise self._refusal(reason)
        return answer.take(answer.int32())

    def _refusal(self, reason: str) -> JobRejected:
        remedy = "check the credentials in `options`"
        return JobRejected("kafka-refused", "options", f"{self._place}: the login failed: {reason}: {remedy}")

    # ------------------------------------------------------------ messages

    def _request(self, api: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        """The answer behind its header. `flexible`: both headers end with tagged fields (KIP-482)."""
        self._correlation += 1
        header = struct.pack(">hhi", api, version, self._correlation) + _text("weir") + (b"\0" if flexible else b"")
        message = header + body
        self._socket.sendall(struct.pack(">i", len(message)) + message)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= _MAX_RESPONSE_BYTES:
            raise EnvironmentFailure(f"{self._place}: an answer has {size} bytes: this is no Kafka broker")
        answer = self._receive(size)
        if struct.unpack(">i", answer[:4])[0] != self._correlation:
            raise EnvironmentFailure(f"{self._place}: an answer belongs to another request")
        if flexible:
            rest = _Reader(answer[4:])
            rest.tags()
            return rest.remainder()
        return answer[4:]

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise OSError(errno.ECONNRESET, f"{self._place}: the broker has closed the connection")
            found += part
        return bytes(found)


def sasl_mechanism(options: Mapping[str, str]) -> str:
    return options.get("sasl.mechanisms", options.get("sasl.mechanism", "GSSAPI")).upper()


class _Reader:
    """The fields of an answer, in order. A truncated answer raises EnvironmentFailure."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def take(self, size: int) -> bytes:
        found = self._data[self._place : self._place + size]
        if len(found) < size:
            raise EnvironmentFailure("an answer of a Kafka broker is truncated")
        self._place += size
        return found

    def skip(self, size: int) -> None:
        self.take(size)

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def text(self) -> str:
        """A nullable text; null is ""."""
        return self.take(max(self.int16(), 0)).decode()

    def varint(self) -> int:
        """An unsigned number in groups of 7 bits, the lowest first."""
        value = shift = 0
        while (byte := self.take(1)[0]) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def compact_text(self) -> str:
        """A nullable text of a flexible version; null is ""."""
        return self.take(max(self.varint() - 1, 0)).decode()

    def tags(self) -> None:
        """Skips tagged fields."""
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())

    def remainder(self) -> bytes:
        return self._data[self._place :]


def _topic_with_id(answer: _Reader) -> tuple[str, UUID] | None:
    """Reads a topic of Metadata 12. None: there is no such topic."""
    error, name, identity = answer.int16(), answer.compact_text(), UUID(bytes=answer.take(16))
    answer.skip(1)  # whether it is internal
    for _ in range(answer.varint() - 1):
        answer.skip(14)  # error, number, leader, epoch of the leader
        for _ in range(3):  # replicas: all, in sync, offline
            answer.skip(4 * max(answer.varint() - 1, 0))
        answer.tags()
    answer.skip(4)  # rights
    answer.tags()
    return None if error else (name, identity)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _compact_text(value: str) -> bytes:
    data = value.encode()
    return _varint(len(data) + 1) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _ssl_context(options: Mapping[str, str], check_host: bool) -> ssl.SSLContext:
    """Raises JobRejected if a certificate or key cannot be loaded."""
    try:
        context = ssl.create_default_context(cafile=options.get("ssl.ca.location"), cadata=options.get("ssl.ca.pem"))
        context.check_hostname = check_host
        if options.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate := options.get("ssl.certificate.location"):
            context.load_cert_chain(certificate, options.get("ssl.key.location"), options.get("ssl.key.password"))
    except (OSError, ssl.SSLError) as error:
        raise JobRejected("bad-certificate", "options", f"the certificates cannot be loaded: {error}") from error
    return context
