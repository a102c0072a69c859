"""A proxy before a Kafka broker: it answers or swallows requests, for errors that the broker does not give.

`serial_broker` hides a fault of the broker. Requests that end transactions at the same moment may leave a partition
without a last stable offset for ever (seen in 1 of 14 rounds of three transactions with the same partitions). One
request marks the other's transaction as committed before its marker is written. The marker then registers the committed
transaction again, and no later transaction of the partition is resolved.
"""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

from tests.kafka import Broker, free_port, running_broker
from tests.stalls import Stall

PRODUCE = 0
INIT_PRODUCER_ID = 22  #: ends an open transaction of its id
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26

#: (api key, body of the request behind its correlation id) -> answer behind the correlation id, b"" to forward the
#: request and close the connection before its answer, or None to forward both
Rule = Callable[[int, bytes], bytes | None]


@dataclass
class Proxy:
    broker: Broker
    rule: Rule = field(default=lambda api, body: None)
    refusal: int = 0  #: error code that answers each request to produce messages; 0: the broker answers
    stall: Stall = field(default_factory=Stall)  #: of all answers
    serial: frozenset[int] = frozenset()  #: api keys of requests that the broker gets one at a time
    turn: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def proxied_broker(port: int | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    """A broker that is known to its clients by the address of the proxy only, which speaks TLS by `tls`."""
    port = port or free_port()
    with (
        running_broker("--advertised-listener-url", f"tcp://127.0.0.1:{port}") as behind,
        proxy_before(behind.address, Broker(f"127.0.0.1:{port}"), tls) as proxy,
    ):
        yield proxy


@contextmanager
def proxy_before(behind: tuple[str, int], broker: Broker, tls: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    """A proxy at the address of `broker`, before the listener `behind` that tells its clients this address."""
    proxy = Proxy(broker)
    plain = socket.create_server(broker.address)
    with tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False) if tls else plain as server:
        thread = threading.Thread(target=_accept, args=(server, behind, proxy), daemon=True)
        thread.start()
        yield proxy
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@contextmanager
def serial_broker() -> Iterator[Proxy]:
    """A broker that ends one transaction at a time."""
    with proxied_broker() as proxy:
        proxy.serial = frozenset({END_TXN, INIT_PRODUCER_ID})
        yield proxy


def transactional_id(body: bytes) -> str:
    """The id in a request of a version without tagged fields: EndTxn, AddOffsetsToTxn."""
    (client,) = struct.unpack_from(">h", body)
    (size,) = struct.unpack_from(">h", body, 2 + client)
    return body[4 + client : 4 + client + size].decode()


def _accept(server: socket.socket, behind: tuple[str, int], proxy: Proxy) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            threading.Thread(target=_serve, args=(client, behind, proxy), daemon=True).start()


def _serve(client: socket.socket, behind: tuple[str, int], proxy: Proxy) -> None:
    with suppress(OSError, EOFError), client, socket.create_connection(behind) as broker:
        while True:
            request = _frame(client)
            api, _, correlation = struct.unpack_from(">hhi", request)
            answer = proxy.rule(api, request[8:])
            if api == PRODUCE and proxy.refusal:
                answer = _refused_produce(request, proxy.refusal)
            if answer is None or not answer:
                with proxy.turn if api in proxy.serial else nullcontext():
                    broker.sendall(struct.pack(">i", len(request)) + request)
                    received = _frame(broker)
                if answer is not None:
                    return
                proxy.stall.wait()
                client.sendall(struct.pack(">i", len(received)) + received)
            else:
                client.sendall(struct.pack(">ii", len(answer) + 4, correlation) + answer)


def _refused_produce(request: bytes, code: int) -> bytes:
    """The answer to Produce of version 9 or 10 with the messages of a single partition, as librdkafka sends them."""
    _, version, _, client = struct.unpack_from(">hhih", request)
    assert version in (9, 10), f"Produce {version}"
    start = 11 + client  # behind the header and its tagged fields
    start += max(request[start] - 1, 0) + 8  # transactional id, acks, time-out, number of topics
    topic = request[start : start + request[start]]
    partition = request[start + len(topic) + 1 :][:4]
    return b"\0\2" + topic + b"\2" + partition + struct.pack(">hqqqBBB", code, -1, -1, -1, 1, 0, 0) + b"\0" * 6


def _frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
