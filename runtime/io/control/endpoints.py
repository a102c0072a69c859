"""Control connection between the master of an attempt and each of its slots: framed messages over TCP.

The first frame of a slot is its `Hello`, the first frame of the master its `HelloAnswer`. The caller defines all
further messages: any union of tagged `msgspec.Struct`s. The end of a connection, for any reason, is reported to the
peer at once, exactly once, and after every earlier message.

Heartbeats are the caller's concern: a peer that hangs keeps its connection.
"""

import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure
from runtime.io.control.connection import ConnectionEnded, FramedConnection, close_all, connect, encode_frame
from runtime.io.control.lobby import Acceptor
from runtime.io.threads import start_thread
from runtime.io.wire import refusal_reason

MAX_HELLO_BYTES: Final = 64 * 1024  #: limit until the peer has shown the secret
HELLO_TIMEOUT_S: Final = 5.0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a slot. The master's callback receives it without the secret."""

    token: int
    secret: str
    slot: int  #: for the pool of a run, the number of the member
    pid: int
    host: str
    address: str  #: address of the slot's exchange
    executor: str = ""  #: the cluster's id of the executor; "" without a cluster
    log: str = ""  #: file on its host that receives its stderr; "" if there is none
    kept_since: int | None = None  #: of a kept slot: token of the attempt that deployed it


class HelloAnswer(msgspec.Struct, frozen=True):
    """Answer of the master to a `Hello`. `refused` is the reason of a refusal."""

    refused: str | None = None


OnHello = Callable[[int, Hello], None]
OnMessage = Callable[[int, Any], None]
OnLost = Callable[[int, str], None]


class ControlServer:
    """Master's end of the connections. Callbacks run on its threads, for a given slot always on the same thread.

    Per slot: `on_hello` once, then `on_message` in order, then `on_lost` once (not after `close`). A slot number is
    valid for a single connection: a slot that loses it cannot reconnect within the attempt.
    """

    def __init__(
        self,
        token: Token,
        secret: str,
        incoming: Any,
        *,
        on_hello: OnHello,
        on_message: OnMessage,
        on_lost: OnLost,
        host: str = "127.0.0.1",
    ) -> None:
        """`incoming` is the type (a union of tagged structs) of the slots' messages."""
        self._gate = SlotGate(token, secret)
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._on_hello, self._on_message, self._on_lost = on_hello, on_message, on_lost
        self._lock = threading.Lock()
        self._closing = False
        self._connections: dict[int, FramedConnection] = {}
        self._threads: dict[threading.Thread, FramedConnection] = {}
        listener = socket.create_server((host, 0))
        self.address = f"{host}:{listener.getsockname()[1]}"
        self._acceptor = Acceptor(
            listener, self._on_first_frame, max_frame_bytes=MAX_HELLO_BYTES, patience_s=HELLO_TIMEOUT_S
        )

    def send(self, slot: int, message: Any) -> None:
        """Never blocks. Messages to a lost slot are dropped; `on_lost` reports the loss."""
        frame = encode_frame(message)
        link = self._connections.get(slot)
        if link is not None:
            link.send(frame)

    def drop(self, slot: int) -> None:
        """Ends the connection of a slot at once; `on_lost` follows."""
        link = self._connections.get(slot)
        if link is not None:
            link.abort()

    def close(self) -> None:
        """Sends queued messages, as far as the slots read them, and ends every connection."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._acceptor.close()  # admits no further slots
        close_all(dict(self._threads))

    def _on_first_frame(self, connection: socket.socket, frame: bytes) -> bytes | None:
        """Admits a slot. Any other peer gets the reason of the refusal, and has cost no thread."""
        try:
            hello = msgspec.msgpack.decode(frame, type=Hello)
            refused = self._gate.admit(hello)
        except msgspec.DecodeError as error:
            return encode_frame(HelloAnswer(f"refused: {error}"))
        if refused is not None:
            return encode_frame(HelloAnswer(refused))
        link = FramedConnection(connection, f"slot-{hello.slot}")
        thread = threading.Thread(target=self._serve, args=(link, hello), name=f"control-{hello.slot}", daemon=True)
        with self._lock:
            self._threads[thread] = link
        try:
            start_thread(thread)
        except EnvironmentFailure:
            with self._lock:
                del self._threads[thread]
            link.abort()
            raise
        return None

    def _serve(self, link: FramedConnection, hello: Hello) -> None:
        link.send(encode_frame(HelloAnswer()))
        try:
            self._exchange_messages(link, hello)
        finally:
            link.close()
            with self._lock:
                self._threads.pop(threading.current_thread(), None)

    def _exchange_messages(self, link: FramedConnection, hello: Hello) -> None:
        slot = hello.slot
        with self._lock:
            self._connections[slot] = link
        reason = "the callback failed"
        try:
            self._on_hello(slot, msgspec.structs.replace(hello, secret=""))
            reason = link.receive_all(self._decoder, lambda message: self._on_message(slot, message))
        finally:
            with self._lock:
                del self._connections[slot]
                silent = self._closing
            if not silent:
                self._on_lost(slot, reason)


class ControlClient:
    """The slot's end of its connection. Callbacks report everything after the TCP connect, including a refusal."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        incoming: Any,
        *,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Connects and sends the hello. `incoming` is the type (a union of tagged structs) of the master's messages.

        Raises:
            EnvironmentFailure: `address` does not answer, or no thread is free.
        """
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._on_message, self._on_lost = on_message, on_lost
        self._closing = False
        self._connection = FramedConnection(connect(address), f"slot-{hello.slot}")
        self._thread = threading.Thread(target=self._run, name=f"control-slot-{hello.slot}", daemon=True)
        try:
            start_thread(self._thread)
        except EnvironmentFailure:
            self._connection.abort()
            raise
        self._connection.send(encode_frame(hello))

    def send(self, message: Any) -> None:
        """Never blocks. Messages after the loss of the connection are dropped; `on_lost` reports the loss."""
        self._connection.send(encode_frame(message))

    def close(self) -> None:
        """Sends queued messages, as far as the master reads them, and ends the connection without `on_lost`."""
        self._closing = True
        close_all({self._thread: self._connection})

    def _run(self) -> None:
        reason = "the callback failed"
        try:
            reason = self._exchange_messages()
        finally:
            if not self._closing:
                self._on_lost(reason)
            self._connection.close()

    def _exchange_messages(self) -> str:
        try:
            answer = msgspec.msgpack.decode(self._connection.receive(MAX_HELLO_BYTES), type=HelloAnswer)
        except ConnectionEnded as ended:
            return str(ended)
        except msgspec.DecodeError as error:
            return f"unreadable answer: {error}"
        return answer.refused or self._connection.receive_all(self._decoder, self._on_message)


class SlotGate:
    """Admits slots to the master of an attempt: each slot once, with the attempt's token and secret."""

    def __init__(self, token: Token, secret: str) -> None:
        self._token = token
        self._secret = secret
        self._lock = threading.Lock()
        self._admitted: set[int] = set()

    def admit(self, hello: Hello) -> str | None:
        """Reason to refuse the slot; None if it is admitted."""
        reason = refusal_reason(self._token, self._secret, hello.token, hello.secret)
        if reason is not None:
            return reason
        with self._lock:
            if hello.slot in self._admitted:
                return f"refused: slot {hello.slot} of this attempt has connected before"
            self._admitted.add(hello.slot)
        return None
