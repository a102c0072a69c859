"""Unauthenticated connections: a single thread serves all of them, and their number is bounded.

Until its first frame is complete, a connection costs a descriptor and that frame, but no thread. The first frame
decides: the connection is handed over, or refused with an answer. Beyond `MAX_PENDING_CONNECTIONS` the oldest
connection is dropped, since a legitimate peer sends its hello at once. Running out of descriptors (EMFILE) is waited
out.
"""

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from runtime.clock import Deadline
from runtime.errors import EnvironmentFailure

MAX_PENDING_CONNECTIONS: Final = 256
REFUSAL_TIMEOUT_S: Final = 0.8  #: how long a refused peer may take to read the answer
_ACCEPT_RETRY_S: Final = 0.1  #: pause after a failed accept
_SELECT_TIMEOUT_S: Final = 0.1
_MAX_CHUNK_BYTES: Final = 64 * 1024
_LENGTH_FORMAT: Final = struct.Struct(">I")

OnFirstFrame = Callable[[socket.socket, bytes], bytes | None]


class _PendingConnection:
    def __init__(self, connection: socket.socket, patience_s: float) -> None:
        self.connection = connection
        self.deadline = Deadline(patience_s)
        self.data = bytearray()
        self.is_refused = False

    @property
    def missing_bytes(self) -> int:
        """Bytes missing from the length or, once it is complete, from the frame: no byte after the frame is read."""
        if len(self.data) < _LENGTH_FORMAT.size:
            return _LENGTH_FORMAT.size - len(self.data)
        return _LENGTH_FORMAT.size + self.length - len(self.data)

    @property
    def length(self) -> int:
        return int(_LENGTH_FORMAT.unpack(self.data[: _LENGTH_FORMAT.size])[0])


class Acceptor:
    """Accepts connections from `listener`, which it owns, until it is closed.

    Args:
        on_first_frame: called on the lobby's thread with a connection and its first frame, without the length. Returns
            None if it takes over the connection, which is blocking, or the answer to a refused peer.
        max_frame_bytes: a peer that announces more is disconnected.
        patience_s: a peer whose first frame is not complete within these seconds is disconnected.
    """

    def __init__(
        self, listener: socket.socket, on_first_frame: OnFirstFrame, *, max_frame_bytes: int, patience_s: float
    ) -> None:
        self._listener = listener
        self._on_first_frame = on_first_frame
        self._max_frame_bytes, self._patience_s = max_frame_bytes, patience_s
        self._pending: dict[socket.socket, _PendingConnection] = {}  #: in order of arrival
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
                for key, _ in self._selector.select(_SELECT_TIMEOUT_S):
                    self._on_readable(key.fileobj)
                for guest in [each for each in self._pending.values() if each.deadline.has_passed]:
                    self._drop(guest)
        finally:
            for guest in list(self._pending.values()):
                self._drop(guest)
            self._selector.close()
            for owned in (self._listener, self._woken, self._wake):
                owned.close()

    def _on_readable(self, ready: Any) -> None:
        if ready is self._listener:
            self._accept()
        elif ready in self._pending:
            self._read(self._pending[ready])

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor left, or the peer has disconnected
            self._drop_oldest()
            self._closing.wait(_ACCEPT_RETRY_S)
            return
        if len(self._pending) >= MAX_PENDING_CONNECTIONS:
            self._drop_oldest()
        connection.setblocking(False)
        self._pending[connection] = _PendingConnection(connection, self._patience_s)
        self._selector.register(connection, selectors.EVENT_READ)

    def _drop_oldest(self) -> None:
        if self._pending:
            self._drop(next(iter(self._pending.values())))

    def _read(self, guest: _PendingConnection) -> None:
        try:
            data = guest.connection.recv(_MAX_CHUNK_BYTES if guest.is_refused else guest.missing_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(guest)
        elif not guest.is_refused:
            guest.data += data
            self._check_frame(guest)

    def _check_frame(self, guest: _PendingConnection) -> None:
        if len(guest.data) < _LENGTH_FORMAT.size:
            return
        if guest.length > self._max_frame_bytes:
            self._drop(guest)
        elif not guest.missing_bytes:
            self._hand_over(guest)

    def _hand_over(self, guest: _PendingConnection) -> None:
        """Hands the connection over, or refuses it. Discards further input, since a reset could overtake the answer."""
        connection, frame = guest.connection, bytes(guest.data[_LENGTH_FORMAT.size :])
        self._forget(guest)
        connection.setblocking(True)
        try:
            answer = self._on_first_frame(connection, frame)
        except (OSError, EnvironmentFailure):  # no thread is free: only this peer is disconnected
            connection.close()
            return
        if answer is None:
            return
        connection.setblocking(False)
        guest.is_refused, guest.deadline = True, Deadline(REFUSAL_TIMEOUT_S)
        self._pending[connection] = guest
        self._selector.register(connection, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            connection.send(answer)
            connection.shutdown(socket.SHUT_WR)

    def _drop(self, guest: _PendingConnection) -> None:
        self._forget(guest)
        guest.connection.close()

    def _forget(self, guest: _PendingConnection) -> None:
        self._selector.unregister(guest.connection)
        del self._pending[guest.connection]
