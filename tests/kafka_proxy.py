"""A proxy before a Kafka broker: it answers or swallows requests, for errors that the broker does not give.

`serial_broker` hides a fault of the broker. Requests that end transactions at the same moment may leave a partition
without a last stable offset for ever (seen in 1 of 14 rounds of three transactions with the same partitions). One
request marks the other's transaction as committed before its marker is written. The marker then registers the committed
transaction again, and no later transaction of the partition is resolved.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

from runtime.connectors.kafka.wire import END_TXN
from tests.kafka import Broker, free_port, running_broker

INIT_PRODUCER_ID = 22  #: ends an open transaction of its id

#: (api key, body of the request behind its correlation id) -> answer behind the correlation id, b"" to forward the
#: request and close the connection before its answer, or None to forward both
Rule = Callable[[int, bytes], bytes | None]


@dataclass
class Proxy:
    broker: Broker
    rule: Rule = field(default=lambda api, body: None)
    serial: frozenset[int] = frozenset()  #: api keys of requests that the broker gets one at a time
    turn: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def proxied_broker() -> Iterator[Proxy]:
    """A broker that is known to its clients by the address of the proxy only."""
    port = free_port()
    with running_broker("--advertised-listener-url", f"tcp://127.0.0.1:{port}") as behind:
        proxy = Proxy(Broker(f"127.0.0.1:{port}"))
        with socket.create_server(("127.0.0.1", port)) as server:
            thread = threading.Thread(target=_accept, args=(server, behind.address, proxy), daemon=True)
            thread.start()
            yield proxy
            server.shutdown(socket.SHUT_RDWR)
        thread.join()


@contextmanager
def serial_broker() -> Iterator[Broker]:
    """A broker that ends one transaction at a time."""
    with proxied_broker() as proxy:
        proxy.serial = frozenset({END_TXN, INIT_PRODUCER_ID})
        yield proxy.broker


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
            if answer is None or not answer:
                with proxy.turn if api in proxy.serial else nullcontext():
                    broker.sendall(struct.pack(">i", len(request)) + request)
                    received = _frame(broker)
                if answer is not None:
                    return
                client.sendall(struct.pack(">i", len(received)) + received)
            else:
                client.sendall(struct.pack(">ii", len(answer) + 4, correlation) + answer)


def _frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
