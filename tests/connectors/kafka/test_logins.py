"""Logins of both clients, librdkafka and kafka-python, at a broker behind a proxy that asks for one."""

import base64
import hashlib
import hmac
import os
import ssl
import struct
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtensionOID, NameOID

from runtime.connectors.kafka.connection import SASL_MECHANISMS, KafkaConnection
from runtime.connectors.kafka.formats import KafkaText
from runtime.connectors.kafka.source import KafkaSource
from runtime.errors import EnvironmentFailure, JobRejected, TargetAway
from tests.connectors.kafka.test_sink import sink, visible
from tests.connectors.two_phases import commit, rows, writer
from tests.contracts.files import Reading
from tests.kafka_proxy import Proxy, proxied_broker

SASL_HANDSHAKE = 17
SASL_AUTHENTICATE = 36
REFUSED = 58
MECHANISMS = [
    each if each == "SCRAM-SHA-256" else pytest.param(each, marks=pytest.mark.slow) for each in SASL_MECHANISMS
]
USER, PASSWORD = "weir,=", "se,cret="


class Logins:
    """The server's half of SASL PLAIN and SCRAM (RFC 5802) with one user, as a rule of the proxy."""

    def __init__(self) -> None:
        self.mechanism, self.count = "", 0
        self._first: dict[str, str] = {}  #: by nonce: the first messages of client and server
        self._salt = os.urandom(16)

    def __call__(self, api: int, body: bytes) -> bytes | None:
        data = body[2 + max(struct.unpack_from(">h", body)[0], 0) :]  # behind the client's name
        if api == SASL_HANDSHAKE:
            self.mechanism = data[2:].decode()
            return struct.pack(">hih", 0, 1, len(self.mechanism)) + self.mechanism.encode()
        if api != SASL_AUTHENTICATE:
            return None
        is_flexible = data[1] != 0  # kafka-python sends version 2: no tags, then the size of the message + 1
        message = data[2 + (data[1] >> 7) : -1] if is_flexible else data[4:]
        answer = self._answer(message.decode())
        error, reason = (0, b"") if answer is not None else (REFUSED, b"Authentication failed")
        token = (answer or "").encode()
        if is_flexible:
            body = _varint(len(reason) + 1) + reason + _varint(len(token) + 1) + token
            return struct.pack(">Bh", 0, error) + body + bytes(9)  # no end of the session, no tags
        return struct.pack(">hh", error, len(reason)) + reason + struct.pack(">i", len(token)) + token + bytes(8)

    def _answer(self, message: str) -> str | None:
        if self.mechanism == "PLAIN":
            is_right = message in (f"\0{USER}\0{PASSWORD}", f"{USER}\0{USER}\0{PASSWORD}")  # RFC 4616 has both
            self.count += is_right
            return "" if is_right else None
        if message.startswith("n,,"):
            nonce = message.partition(",r=")[2] + "server"
            first = f"r={nonce},s={base64.b64encode(self._salt).decode()},i=4096"
            self._first[nonce] = f"{message[3:]},{first}"
            return first if message.startswith("n,,n=weir=2C=3D,") else None
        final, _, proof = message.rpartition(",p=")
        if final.partition(",r=")[2] not in self._first:  # librdkafka sends an empty message after a refusal
            return None
        digest = self.mechanism.removeprefix("SCRAM-").replace("-", "")
        salted = hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), self._salt, 4096)
        proven = f"{self._first[final.partition(',r=')[2]]},{final}".encode()
        key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, key).digest(), proven, digest)
        if bytes(a ^ b for a, b in zip(key, signature, strict=True)) != base64.b64decode(proof):
            return None
        self.count += 1
        return f"v={base64.b64encode(hmac.digest(hmac.digest(salted, b'Server Key', digest), proven, digest)).decode()}"


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


def options(mechanism: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
        "sasl.username": USER,
        "sasl.password": "${secret:KAFKA}",
        "socket.timeout.ms": "5000",
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_both_clients_log_in_and_commit(mechanism: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_KAFKA", PASSWORD)
    topic, job = proxy.broker.topic(), f"login-{mechanism}"
    logins: Any = Logins()
    proxy.rule = logins
    of = sink(proxy.broker, topic, options=options(mechanism))
    sink_writer = writer(of, job=job)
    sink_writer.write(rows(1, 2))
    (committable,) = sink_writer.prepare(1)
    before = logins.count
    assert before > 0, "librdkafka has logged in"
    assert commit(of, committable, job=job) == 1
    sink_writer.close()
    proxy.rule = lambda api, body: None
    assert visible(proxy.broker, topic) == [1, 2]
    assert PASSWORD not in repr(of)
    assert PASSWORD not in str(committable)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused_by_name(mechanism: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remedy, and neither the password nor an outage that is retried without end."""
    monkeypatch.setenv("WEIR_SECRET_KAFKA", "wr0ng-one")
    topic = proxy.broker.topic()
    proxy.rule = Logins()
    with pytest.raises(JobRejected, match="check the credentials") as source_error:
        Reading(KafkaSource(proxy.broker.servers, topic, KafkaText(), options=options(mechanism)))
    with pytest.raises(
        JobRejected, match=r"the login failed: .*Authentication failed: check the credentials"
    ) as sink_error:
        KafkaConnection(proxy.broker.servers, options(mechanism)).metadata("brokers")
    proxy.rule = lambda api, body: None
    assert all("wr0ng-one" not in str(each.value) for each in (source_error, sink_error))
    assert {each.value.code for each in (source_error, sink_error)} == {"kafka-refused"}


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate of this machine, which signs itself, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now, host = datetime.now(UTC), x509.IPAddress(ip_address("127.0.0.1"))
    certificate = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - timedelta(1), now + timedelta(1),
        [x509.Extension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, False, x509.SubjectAlternativeName([host]))],
    ).sign(key, hashes.SHA256())  # fmt: skip
    pem = Encoding.PEM
    file = tmp_path / "broker.pem"
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption()))
    return file


def test_a_login_within_tls_needs_a_certificate_that_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_SECRET_KAFKA", PASSWORD)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with proxied_broker(tls=tls) as proxy:
        logins: Any = Logins()
        proxy.rule = logins
        within = {**options("SCRAM-SHA-256"), "security.protocol": "SASL_SSL"}
        trusting = KafkaConnection(proxy.broker.servers, {**within, "ssl.ca.location": str(certificate)})
        (broker,) = trusting.metadata("brokers").brokers
        assert (broker.host, broker.port) == proxy.broker.address
        assert logins.count == 1
        with pytest.raises(EnvironmentFailure, match=r"brokers: .*certificate verify failed") as error:
            KafkaConnection(proxy.broker.servers, within).metadata("brokers")
        assert not isinstance(error.value, TargetAway), "waiting is no remedy"
        missing = KafkaConnection(proxy.broker.servers, {**within, "ssl.ca.location": "/no/such/file"})
        with pytest.raises(JobRejected, match="the certificates cannot be loaded"):
            missing.metadata("brokers")
