"""In-memory counterpart of the control connection.

There are no threads: the sender delivers. Messages are encoded and decoded, so that messages without an encoding fail.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure
from runtime.io.control.connection import CLOSED_BY_PEER
from runtime.io.control.endpoints import Hello, OnHello, OnLost, OnMessage, SlotGate


class MemoryControlServer:
    """Master's end; counterpart of `ControlServer`."""

    def __init__(
        self,
        token: Token,
        secret: str,
        incoming: Any,
        *,
        on_hello: OnHello,
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        self.gate = SlotGate(token, secret)
        self.decoder = msgspec.msgpack.Decoder(incoming)
        self.on_hello, self.on_message, self.on_lost = on_hello, on_message, on_lost
        self.closed = False
        self.clients: dict[int, MemoryControlClient] = {}

    def send(self, slot: int, message: Any) -> None:
        data = msgspec.msgpack.encode(message)
        client = self.clients.get(slot)
        if client is not None:
            client.deliver(data)

    def close(self) -> None:
        self.closed = True
        clients, self.clients = self.clients, {}
        for client in clients.values():
            client.disconnect(CLOSED_BY_PEER)


class MemoryControlClient:
    """Slot's end; counterpart of `ControlClient`. The server object serves as its address."""

    def __init__(
        self,
        server: MemoryControlServer,
        hello: Hello,
        incoming: Any,
        *,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        if server.closed:
            raise EnvironmentFailure("cannot reach the master: it is closed")
        self._server = server
        self._slot = hello.slot
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._on_message, self._on_lost = on_message, on_lost
        self._open = True
        refused = server.gate.admit(hello)
        if refused is not None:
            self.disconnect(refused)
            return
        server.clients[self._slot] = self
        server.on_hello(self._slot, msgspec.structs.replace(hello, secret=""))

    def send(self, message: Any) -> None:
        data = msgspec.msgpack.encode(message)
        if not self._open:
            return
        try:
            message = self._server.decoder.decode(data)
        except msgspec.DecodeError as error:
            self._close_server_side(f"unreadable message: {error}")
            self._on_lost(CLOSED_BY_PEER)
            return
        self._server.on_message(self._slot, message)

    def close(self) -> None:
        """Ends the connection; to the master, a slot that closes looks like a slot that dies."""
        if self._open:
            self._close_server_side(CLOSED_BY_PEER)

    def deliver(self, data: bytes) -> None:
        if not self._open:
            return
        try:
            message = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            self._close_server_side(CLOSED_BY_PEER)
            self._on_lost(f"unreadable message: {error}")
            return
        self._on_message(message)

    def disconnect(self, reason: str) -> None:
        if self._open:
            self._open = False
            self._on_lost(reason)

    def _close_server_side(self, reason: str) -> None:
        self._open = False
        self._server.clients.pop(self._slot, None)
        self._server.on_lost(self._slot, reason)
