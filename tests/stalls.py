"""Servers that are slow: a request arrives and is served, and its answer waits."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Stall:
    """Holds back the answers of a server within the block of `closed`. Thread-safe."""

    def __init__(self) -> None:
        self._flows = threading.Event()
        self._flows.set()

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def wait(self) -> None:
        """Blocks while the stall is closed."""
        self._flows.wait()


@contextmanager
def stalling_proxy(host: str, port: int) -> Iterator[tuple[int, Stall]]:
    """The port of a TCP proxy before a server, and the stall of its answers."""
    stall = Stall()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_accept, args=(server, (host, port), stall), daemon=True)
        thread.start()
        yield server.getsockname()[1], stall
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def _accept(server: socket.socket, behind: tuple[str, int], stall: Stall) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            threading.Thread(target=_serve, args=(client, behind, stall), daemon=True).start()


def _serve(client: socket.socket, behind: tuple[str, int], stall: Stall) -> None:
    with suppress(OSError), client, socket.create_connection(behind) as server:
        answers = threading.Thread(target=_forward, args=(server, client, stall), daemon=True)
        answers.start()
        _forward(client, server, None)
        answers.join()


def _forward(source: socket.socket, to: socket.socket, stall: Stall | None) -> None:
    """Forwards bytes until one side ends, then ends the sending direction of the other side."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if stall is not None:
                stall.wait()
            to.sendall(data)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)
