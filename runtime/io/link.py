"""One TCP connection that carries frames: four bytes of length, then a msgpack value.

Sending never waits, a thread of its own writes. Reading is its owner's, on the owner's thread. It does not know what
the frames mean, nor who is at the other side.
"""

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from runtime.errors import EnvironmentFailure, ProtocolViolation
from runtime.io.clock import Deadline

CLOSED: Final = "the other side closed the connection"
MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
MAX_QUEUED_BYTES: Final = 2 * MAX_FRAME_BYTES  #: a peer that leaves more than this unread is given up
CONNECT_TIMEOUT_S: Final = 10.0
LINGER_S: Final = 0.8  #: how long an end waits, for queued frames to go out and for the other side to end too
_CHUNK_BYTES: Final = 64 * 1024  #: small frames are joined up to this
_LENGTH: Final = struct.Struct(">I")
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  #: seconds, seconds, probes


def encode_frame(message: Any) -> bytes:
    data = msgspec.msgpack.encode(message)
    if len(data) > MAX_FRAME_BYTES:
        raise ProtocolViolation(
            f"{type(message).__name__} of {len(data)} bytes exceeds the frame limit of {MAX_FRAME_BYTES}"
        )
    return _LENGTH.pack(len(data)) + data


class LinkEnded(Exception):
    """Nothing more can be read; the text says why."""


class Link:
    """A connection: its owner's thread reads, a thread of its own writes."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        _tune(connection)
        self._socket = connection
        self._stream = connection.makefile("rb")
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._queued_bytes = 0
        self._fault = ""
        self._over = False
        self._writer = threading.Thread(target=self._write_all, name=f"control-write-{name}", daemon=True)
        self._writer.start()

    def send(self, frame: bytes) -> None:
        with self._lock:
            if self._over:
                return
            self._queued_bytes += len(frame)
            if self._queued_bytes <= MAX_QUEUED_BYTES:
                self._frames.put(frame)
                return
            self._fault = f"given up: it leaves {self._queued_bytes} bytes unread"
        self.abort()

    def receive(self, limit_bytes: int) -> bytes:
        """The next frame, without its length. Raises LinkEnded."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > limit_bytes:
            raise LinkEnded(f"a frame of {length} bytes exceeds the limit of {limit_bytes}")
        return self._read(length)

    def listen(self, decoder: Any, on_message: Callable[[Any], None]) -> str:
        """Hand on messages until there are no more. Returns why."""
        while True:
            try:
                message = decoder.decode(self.receive(MAX_FRAME_BYTES))
            except LinkEnded as ended:
                return self._fault or str(ended)
            except msgspec.DecodeError as error:
                return f"unreadable message: {error}"
            on_message(message)

    def finish(self) -> None:
        """No more will be sent: what is queued goes out, then the other side sees the end."""
        with self._lock:
            self._over = True
        self._frames.put(None)

    def abort(self) -> None:
        """End the connection now, in both directions."""
        self.finish()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Last act of the reading thread.

        What the other side still says is read away: closing over unread bytes would reset the connection, and a reset
        may overtake our own last words.
        """
        self.finish()
        self._writer.join(LINGER_S)
        self._drain()
        self.abort()
        self._writer.join()
        self._stream.close()
        self._socket.close()

    def _drain(self) -> None:
        deadline = Deadline(LINGER_S)
        with contextlib.suppress(OSError):
            while not deadline.passed:
                self._socket.settimeout(max(deadline.remaining_s, 0.001))
                if not self._socket.recv(_CHUNK_BYTES):
                    return

    def _read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except OSError as error:
            raise LinkEnded(f"connection lost: {error}") from error
        if len(data) < size:
            raise LinkEnded(CLOSED + (" inside a frame" if data else ""))
        return data

    def _write_all(self) -> None:
        try:
            while chunk := self._next_chunk():
                self._socket.sendall(chunk)
                with self._lock:
                    self._queued_bytes -= len(chunk)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()  # whoever reads sees the end, and tells

    def _next_chunk(self) -> bytes:
        """Everything that waits, up to a limit; nothing at the end. The mark of the end stays in the queue."""
        frames: list[bytes] = []
        size = 0
        while size < _CHUNK_BYTES and not (frames and self._frames.empty()):
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


def _tune(connection: socket.socket) -> None:
    """Send small frames at once, and notice a host that has vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def close_all(threads: dict[threading.Thread, Link]) -> None:
    """End connections together, kindly first. A callback may close its own connection: nobody joins itself."""
    deadline = Deadline(LINGER_S)
    others = {thread: link for thread, link in threads.items() if thread is not threading.current_thread()}
    for link in threads.values():
        link.finish()
    for thread in others:
        thread.join(deadline.remaining_s)
    for thread, link in others.items():
        if thread.is_alive():
            link.abort()
    for thread in others:
        thread.join(LINGER_S)
