"""Unauthenticated connections: a single thread serves all of them, and their number is bounded.

Until its first frame is complete, a connection costs a descriptor and that frame, but no thread. The first frame
decides: the connection is handed over, or refused with an answer. Beyond `MAX_GUESTS` the oldest connection is dropped,
since a legitimate peer sends its hello at once. Running out of descriptors (EMFILE) is waited out.
"""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from runtime.io.clock import Deadline

MAX_GUESTS: Final = 256
FAREWELL_S: Final = 0.8  #: how long a refused peer may take to read the answer
_PAUSE_S: Final = 0.1  #: pause after a failed accept
_TICK_S: Final = 0.1
_CHUNK_BYTES: Final = 64 * 1024
_LENGTH: Final = struct.Struct(">I")

OnFirstFrame = Callable[[socket.socket, bytes], bytes | None]


class _Guest:
    def __init__(self, connection: socket.socket, patience_s: float) -> None:
        self.connection = connection
        self.deadline = Deadline(patience_s)
        self.data = bytearray()
        self.is_leaving = False

    @property
    def wanted_bytes(self) -> int:
        """Bytes up to the end of the length, or of the frame: no byte after it is read."""
        if len(self.data) < _LENGTH.size:
            return _LENGTH.size - len(self.data)
        return _LENGTH.size + self.length - len(self.data)

    @property
    def length(self) -> int:
        return int(_LENGTH.unpack(self.data[: _LENGTH.size])[0])


class Lobby:
    """Accepts connections from `listener`, which it owns, until it is closed.

    Args:
        on_first_frame: called on the lobby's thread with a connection and its first frame, without the length. None:
            the callee owns the connection, which is blocking. Bytes: the answer to a refused peer.
        max_frame_bytes: a peer that announces more is disconnected.
        patience_s: a peer whose first frame is not complete by then is disconnected.
    """

    def __init__(
        self, listener: socket.socket, on_first_frame: OnFirstFrame, *, max_frame_bytes: int, patience_s: float
    ) -> None:
        self._listener = listener
        self._on_first_frame = on_first_frame
        self._max_frame_bytes, self._patience_s = max_frame_bytes, patience_s
        self._guests: dict[socket.socket, _Guest] = {}  #: in order of arrival
        self._selector = selectors.DefaultSelector()
        self._closing = threading.Event()
        self._woken, self._wake = socket.socketpair()  # made now: later there may be no descriptor left
        listener.setblocking(False)
        for watched in (listener, self._woken):
            self._selector.register(watched, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="lobby", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnects all waiting peers and ends the thread."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                for key, _ in self._selector.select(_TICK_S):
                    self._on_readable(key.fileobj)
                for guest in [each for each in self._guests.values() if each.deadline.passed]:
                    self._drop(guest)
        finally:
            for guest in list(self._guests.values()):
                self._drop(guest)
            self._selector.close()
            for owned in (self._listener, self._woken, self._wake):
                owned.close()

    def _on_readable(self, ready: Any) -> None:
        if ready is self._listener:
            self._accept()
        elif ready in self._guests:
            self._read(self._guests[ready])

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor left, or the peer has disconnected
            self._make_room()
            self._closing.wait(_PAUSE_S)
            return
        if len(self._guests) >= MAX_GUESTS:
            self._make_room()
        connection.setblocking(False)
        self._guests[connection] = _Guest(connection, self._patience_s)
        self._selector.register(connection, selectors.EVENT_READ)

    def _make_room(self) -> None:
        if self._guests:
            self._drop(next(iter(self._guests.values())))

    def _read(self, guest: _Guest) -> None:
        try:
            data = guest.connection.recv(_CHUNK_BYTES if guest.is_leaving else guest.wanted_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(guest)
        elif not guest.is_leaving:
            guest.data += data
            self._judge(guest)

    def _judge(self, guest: _Guest) -> None:
        if len(guest.data) < _LENGTH.size:
            return
        if guest.length > self._max_frame_bytes:
            self._drop(guest)
        elif not guest.wanted_bytes:
            self._introduce(guest)

    def _introduce(self, guest: _Guest) -> None:
        """Hands the connection over, or refuses it. Discards further input, since a reset could overtake the answer."""
        connection, frame = guest.connection, bytes(guest.data[_LENGTH.size :])
        self._forget(guest)
        connection.setblocking(True)
        try:
            answer = self._on_first_frame(connection, frame)
        except (OSError, RuntimeError):  # no thread can start: only this peer is disconnected
            connection.close()
            return
        if answer is None:
            return
        connection.setblocking(False)
        guest.is_leaving, guest.deadline = True, Deadline(FAREWELL_S)
        self._guests[connection] = guest
        self._selector.register(connection, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            connection.send(answer)
            connection.shutdown(socket.SHUT_WR)

    def _drop(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.connection.close()

    def _forget(self, guest: _Guest) -> None:
        self._selector.unregister(guest.connection)
        del self._guests[guest.connection]
