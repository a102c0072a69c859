"""TCP connections of this process whose owner has no call to end them.

A gRPC server cannot cancel its streams, nor a client its attempt to connect; both notice when their connection ends.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SocketAddress = tuple[str, int]


def shut_down_connections(belongs: Callable[[SocketAddress, SocketAddress], bool]) -> None:
    """Shuts down this process's TCP connections for which `belongs(own address, peer address)`.

    The descriptors stay with their owner, which sees the end of the connection and cleans up as for a lost peer.
    """
    for connection in _own_sockets():
        with contextlib.suppress(OSError):  # not connected, or gone by now
            if belongs(_normalize(connection.getsockname()), _normalize(connection.getpeername())):
                connection.shutdown(socket.SHUT_RDWR)


def _own_sockets() -> Iterator[socket.socket]:
    """Duplicates of this process's TCP sockets, each open during a single step of the loop."""
    for path in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptor = os.dup(int(path.name))
            try:
                copy = socket.socket(fileno=descriptor)
            except OSError:  # not a socket
                os.close(descriptor)
                continue
            with copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    yield copy


def _normalize(address: tuple[Any, ...]) -> SocketAddress:
    """Host and port. gRPC uses IPv6 sockets, which show IPv4 addresses in mapped form."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def socket_address(address: str) -> SocketAddress:
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    with contextlib.suppress(OSError):
        host = socket.gethostbyname(host)
    return host, int(port)
