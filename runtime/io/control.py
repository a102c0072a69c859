"""The control connection between the master of an attempt and each of its slots: framed messages over TCP.

The first frame of a slot is its `Hello`, the first of the master the `Answer`; from then on the messages are the
caller's own, any union of tagged `msgspec.Struct`s. A connection that closes, however it does, is told to the other
side at once, once, and after every message that came before.

It does not know what the messages mean, and measures no heartbeats: a peer that hangs keeps its connection.
"""

import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from runtime.core.ids import Token
from runtime.io.link import Link, LinkEnded, close_all, connect, encode_frame
from runtime.io.lobby import Lobby
from runtime.io.wire import refusal

MAX_HELLO_BYTES: Final = 64 * 1024  #: for those who have not shown a secret yet
HELLO_TIMEOUT_S: Final = 5.0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who a slot is. The master's callback sees it without the secret."""

    token: int
    secret: str
    slot: int
    pid: int
    host: str
    address: str  #: of the slot's exchange
    executor: str = ""  #: as the cluster numbers it; "" where nobody does
    log: str = ""  #: where its stderr goes, on its host; "" where that is no file


class Answer(msgspec.Struct, frozen=True):
    """What the master says to a hello. A reason means no."""

    refused: str | None = None


OnHello = Callable[[int, Hello], None]
OnMessage = Callable[[int, Any], None]
OnLost = Callable[[int, str], None]


class ControlServer:
    """The master's end. Callbacks come from its threads, for one slot always from the same one.

    For each slot: `on_hello` once, then `on_message` in order, then `on_lost` once (not after `close`). A slot number
    is good for one connection: whoever loses it cannot come back within the attempt.
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
        """`incoming` is the type (a union of tagged structs) of what slots say."""
        self._gate = Gate(token, secret)
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._on_hello, self._on_message, self._on_lost = on_hello, on_message, on_lost
        self._lock = threading.Lock()
        self._closing = False
        self._links: dict[int, Link] = {}
        self._threads: dict[threading.Thread, Link] = {}
        listener = socket.create_server((host, 0))
        self.address = f"{host}:{listener.getsockname()[1]}"
        self._lobby = Lobby(listener, self._on_first_frame, max_frame_bytes=MAX_HELLO_BYTES, patience_s=HELLO_TIMEOUT_S)

    def send(self, slot: int, message: Any) -> None:
        """Never waits. What is sent to a slot that is gone, goes nowhere: `on_lost` tells."""
        frame = encode_frame(message)
        link = self._links.get(slot)
        if link is not None:
            link.send(frame)

    def close(self) -> None:
        """Deliver what is queued, as far as the slots read it, and end every connection."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._lobby.close()  # which hands on nobody from here on
        close_all(dict(self._threads))

    def _on_first_frame(self, connection: socket.socket, frame: bytes) -> bytes | None:
        """Lets a slot in. Anybody else is told why not, and has cost no thread."""
        try:
            hello = msgspec.msgpack.decode(frame, type=Hello)
            refused = self._gate.admit(hello)
        except msgspec.DecodeError as error:
            return encode_frame(Answer(f"refused: {error}"))
        if refused is not None:
            return encode_frame(Answer(refused))
        link = Link(connection, f"slot-{hello.slot}")
        thread = threading.Thread(target=self._serve, args=(link, hello), name=f"control-{hello.slot}", daemon=True)
        with self._lock:
            self._threads[thread] = link
        thread.start()
        return None

    def _serve(self, link: Link, hello: Hello) -> None:
        link.send(encode_frame(Answer()))
        try:
            self._converse(link, hello)
        finally:
            link.end()
            with self._lock:
                self._threads.pop(threading.current_thread(), None)

    def _converse(self, link: Link, hello: Hello) -> None:
        slot = hello.slot
        with self._lock:
            self._links[slot] = link
        reason = "the callback failed"
        try:
            self._on_hello(slot, msgspec.structs.replace(hello, secret=""))
            reason = link.listen(self._decoder, lambda message: self._on_message(slot, message))
        finally:
            with self._lock:
                del self._links[slot]
                silent = self._closing
            if not silent:
                self._on_lost(slot, reason)


class ControlClient:
    """A slot's end. What happens after the connection is made, a refusal too, is told by the callbacks."""

    def __init__(
        self,
        address: str,
        hello: Hello,
        incoming: Any,
        *,
        on_message: Callable[[Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Connect and say hello. `incoming` is the type (a union of tagged structs) of what the master says.

        Raises:
            EnvironmentFailure: nobody answers at `address`.
        """
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._on_message, self._on_lost = on_message, on_lost
        self._closing = False
        self._link = Link(connect(address), f"slot-{hello.slot}")
        self._link.send(encode_frame(hello))
        self._thread = threading.Thread(target=self._run, name=f"control-slot-{hello.slot}", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        """Never waits. What is sent after the connection was lost goes nowhere: `on_lost` tells."""
        self._link.send(encode_frame(message))

    def close(self) -> None:
        """Deliver what is queued, as far as the master reads it, and end the connection. `on_lost` stays silent."""
        self._closing = True
        close_all({self._thread: self._link})

    def _run(self) -> None:
        reason = "the callback failed"
        try:
            reason = self._converse()
        finally:
            if not self._closing:
                self._on_lost(reason)
            self._link.end()

    def _converse(self) -> str:
        try:
            answer = msgspec.msgpack.decode(self._link.receive(MAX_HELLO_BYTES), type=Answer)
        except LinkEnded as ended:
            return str(ended)
        except msgspec.DecodeError as error:
            return f"unreadable answer: {error}"
        return answer.refused or self._link.listen(self._decoder, self._on_message)


class Gate:
    """Which slots may connect to the master of an attempt: each one once, with the attempt's token and secret."""

    def __init__(self, token: Token, secret: str) -> None:
        self._token = token
        self._secret = secret
        self._lock = threading.Lock()
        self._admitted: set[int] = set()

    def admit(self, hello: Hello) -> str | None:
        """Why this slot may not come in; None if it may."""
        reason = refusal(self._token, self._secret, hello.token, hello.secret)
        if reason is not None:
            return reason
        with self._lock:
            if hello.slot in self._admitted:
                return f"refused: slot {hello.slot} of this attempt has connected before"
            self._admitted.add(hello.slot)
        return None
