"""A connection that speaks the Kafka protocol, for the one request that librdkafka does not offer: EndTxn of another
producer's transaction.

Versions: FindCoordinator 1, EndTxn 1, SaslHandshake 1, SaslAuthenticate 0. Brokers from 1.0 to 4.x accept them.
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
from collections.abc import Mapping
from typing import Final, Self

from runtime.errors import EnvironmentFailure, JobRejected

FIND_COORDINATOR: Final = 10
SASL_HANDSHAKE: Final = 17
END_TXN: Final = 26
SASL_AUTHENTICATE: Final = 36
SASL_MECHANISMS: Final[Mapping[str, str]] = {"PLAIN": "", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_TRANSACTION_KEY: Final = 1  #: key type of FindCoordinator
_MAX_RESPONSE_BYTES: Final = 1 << 20


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

    def find_coordinator(self, transactional_id: str) -> tuple[int, str, int]:
        """Error code, host and port of the coordinator of a transactional id."""
        answer = _Reader(self._request(FIND_COORDINATOR, 1, _text(transactional_id) + bytes([_TRANSACTION_KEY])))
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

    def _request(self, api: int, version: int, body: bytes) -> bytes:
        self._correlation += 1
        message = struct.pack(">hhi", api, version, self._correlation) + _text("weir") + body
        self._socket.sendall(struct.pack(">i", len(message)) + message)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= _MAX_RESPONSE_BYTES:
            raise EnvironmentFailure(f"{self._place}: an answer has {size} bytes: this is no Kafka broker")
        answer = self._receive(size)
        if struct.unpack(">i", answer[:4])[0] != self._correlation:
            raise EnvironmentFailure(f"{self._place}: an answer belongs to another request")
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

    def text(self) -> str:
        """A nullable text; null is ""."""
        return self.take(max(self.int16(), 0)).decode()


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


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
