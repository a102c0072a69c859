"""TCP connection that carries frames: a length of four bytes (big-endian), then a msgpack value.

Sending never blocks, since a thread of the connection writes. The owner reads, on its own thread. Identity of the peer
and meaning of the frames are the owner's concern.
"""

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from runtime.clock import Deadline
from runtime.errors import EnvironmentFailure, ProtocolViolation
from runtime.io.threads import start_thread

CLOSED_BY_PEER: Final = "the other side closed the connection"
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
MAX_QUEUED_BYTES: Final = 2 * MAX_FRAME_BYTES  #: a connection with more unread bytes is aborted
CONNECT_TIMEOUT_S: Final = 10.0
LINGER_TIMEOUT_S: Final = 0.8  #: how long a closing end waits for queued frames to go out, and for the peer to close
_MAX_CHUNK_BYTES: Final = 64 * 1024  #: small frames are combined up to this size
_LENGTH_FORMAT: Final = struct.Struct(">I")
_KEEPALIVE_OPTIONS: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  #: seconds, seconds, probes


def encode_frame(message: Any) -> bytes:
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolViolation(
            f"{type(message).__name__} of {len(data)} bytes exceeds the frame limit of {MAX_FRAME_BYTES}"
        )
    return _LENGTH_FORMAT.pack(len(data)) + data


class ConnectionEnded(Exception):
    """The connection can no longer be read; the text is the reason."""


class FramedConnection:
    """Connection with a thread that writes; the owner's thread reads."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        _set_socket_options(connection)
        self._socket = connection
        self._stream = connection.makefile("rb")
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._queued_bytes = 0
        self._abort_reason = ""
        self._is_closed = False
        self._writer = threading.Thread(target=self._write_all, name=f"control-write-{name}", daemon=True)
        start_thread(self._writer)

    def send(self, frame: bytes) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._queued_bytes += len(frame)
            if self._queued_bytes <= MAX_QUEUED_BYTES:
                self._frames.put(frame)
                return
            self._abort_reason = f"given up: it leaves {self._queued_bytes} bytes unread"
        self.abort()

    def receive(self, limit_bytes: int) -> bytes:
        """The next frame, without its length. Raises ConnectionEnded."""
        (length,) = _LENGTH_FORMAT.unpack(self._read(_LENGTH_FORMAT.size))
        if length > limit_bytes:
            raise ConnectionEnded(f"a frame of {length} bytes exceeds the limit of {limit_bytes}")
        return self._read(length)

    def receive_all(self, decoder: Any, on_message: Callable[[Any], None]) -> str:
        """Passes messages to `on_message` until the connection ends. Returns the reason."""
        while True:
            try:
                message = decoder.decode(self.receive(MAX_FRAME_BYTES))
            except ConnectionEnded as ended:
                return self._abort_reason or str(ended)
            except msgspec.DecodeError as error:
                return f"unreadable message: {error}"
            on_message(message)

    def end_sending(self) -> None:
        """Ends sending: queued frames go out, then the peer sees the end."""
        with self._lock:
            self._is_closed = True
        self._frames.put(None)

    def abort(self) -> None:
        """Closes the connection now, in both directions."""
        self.end_sending()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection, as the last call of the reading thread.

        Further input is read and discarded: closing a socket with unread bytes resets the connection, and the reset may
        overtake our last frames.
        """
        self.end_sending()
        self._writer.join(LINGER_TIMEOUT_S)
        self._drain()
        self.abort()
        self._writer.join()
        self._stream.close()
        self._socket.close()

    def _drain(self) -> None:
        deadline = Deadline(LINGER_TIMEOUT_S)
        with contextlib.suppress(OSError):
            while not deadline.has_passed:
                self._socket.settimeout(max(deadline.remaining_s, 0.001))
                if not self._socket.recv(_MAX_CHUNK_BYTES):
                    return

    def _read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except OSError as error:
            raise ConnectionEnded(f"connection lost: {error}") from error
        if len(data) < size:
            raise ConnectionEnded(CLOSED_BY_PEER + (" inside a frame" if data else ""))
        return data

    def _write_all(self) -> None:
        try:
            while chunk := self._next_chunk():
                self._socket.sendall(chunk)
                with self._lock:
                    self._queued_bytes -= len(chunk)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()  # the reading thread sees the end and reports it

    def _next_chunk(self) -> bytes:
        """All queued frames, up to a limit; empty at the end. The end marker stays in the queue."""
        frames: list[bytes] = []
        size = 0
        while size < _MAX_CHUNK_BYTES and not (frames and self._frames.empty()):
            frame = self._frames.get()
            if frame is None:
                self._frames.put(None)
                break
            frames.append(frame)
            size += len(frame)
        return b"".join(frames)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S)
    except (OSError, ValueError) as error:
        raise EnvironmentFailure(f"cannot reach the master at {address!r}: {error}") from error
    connection.settimeout(None)
    return connection


def _set_socket_options(connection: socket.socket) -> None:
    """Sends small frames at once, and detects a host that has vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def close_all(threads: dict[threading.Thread, FramedConnection]) -> None:
    """Closes connections together, gracefully first. A callback may close its own connection without joining itself."""
    deadline = Deadline(LINGER_TIMEOUT_S)
    by_thread = {thread: link for thread, link in threads.items() if thread is not threading.current_thread()}
    for link in threads.values():
        link.end_sending()
    for thread in by_thread:
        thread.join(deadline.remaining_s)
    for thread, link in by_thread.items():
        if thread.is_alive():
            link.abort()
    for thread in by_thread:
        thread.join(LINGER_TIMEOUT_S)
