"""Streams between processes of one host over Unix sockets, in place of Flight's (decision 0035).

A frame is a header, metadata and a body. A record batch is the body of its frame, in Arrow's IPC format, and is read
into one aligned buffer, from which its columns are used without a copy. The methods of a stream are those of Flight's
readers and writers, so channels use either.

Names are in Linux' abstract namespace: they vanish with their process, and no process in another network namespace,
such as another container, reaches them. Connecting then fails at once.
"""

import contextlib
import io
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, Self, cast

import pyarrow as pa

from runtime.errors import EnvironmentFailure
from runtime.io.threads import start_thread

_HEADER: Final = struct.Struct("<BIQ")  #: kind, bytes of metadata, bytes of the body
_BUFFER_BYTES: Final = 1 << 16
_MAX_OPENING_BYTES: Final = 4096  #: of a peer that has not shown the secret yet
_BACKLOG: Final = 4096
_RETRY_S: Final = 0.05
_OPENING_TIMEOUT_S: Final = 5.0  #: a peer sends its opening at once

Frames = Iterable[tuple[bytes, pa.RecordBatch | None]]


class _Kind(IntEnum):
    OPENING = 0
    MESSAGE = 1  #: metadata only
    SCHEMA = 2
    BATCH = 3  #: of the schema that came before
    BATCH_WITH_DICTIONARIES = 4  #: a whole IPC stream, since dictionaries may change from batch to batch
    ERROR = 5  #: metadata: the text


class LocalStreamError(OSError):
    """The peer refused or broke the stream; the text is the peer's."""


class UnsentFrame(LocalStreamError):
    """This end could not send a frame, by no fault of the peer."""


class LocalStream:
    """An end of a stream. One thread may write while another reads; `cancel` may be called from any thread."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        self._socket = connected
        self._file = cast(io.BufferedReader, connected.makefile("rb", buffering=_BUFFER_BYTES))
        self._written: pa.Schema | None = None
        self._has_dictionaries = False
        self._send_error: OSError | None = None  #: not caused by the peer, such as a lack of memory for buffers

    @classmethod
    def connect(cls, name: str, opening: bytes) -> "LocalStream | None":
        """A stream to the server `name`; None: there is none that this process can reach."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.setblocking(False)  # a full backlog is an error, too
        try:
            connected.connect(f"\0{name}")
            stream = cls(connected)
            stream._send(_Kind.OPENING, opening)
        except OSError:  # no such server, or one that may not be used or does not answer
            connected.close()
            return None
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------ writing

    def begin(self, schema: pa.Schema) -> None:
        self._written, self._has_dictionaries = schema, any(map(_has_dictionary, schema.types))
        self._send(_Kind.SCHEMA, b"", schema.serialize())

    def write_metadata(self, metadata: bytes) -> None:
        self._send(_Kind.MESSAGE, metadata)

    def write_with_metadata(self, batch: pa.RecordBatch, metadata: bytes) -> None:
        if self._has_dictionaries:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._written) as writer:
                writer.write_batch(batch)
            self._send(_Kind.BATCH_WITH_DICTIONARIES, metadata, sink.getvalue())
        else:
            self._send(_Kind.BATCH, metadata, batch.serialize())

    def write_error(self, text: str) -> None:
        self._send(_Kind.ERROR, text.encode())

    def _send(self, kind: _Kind, metadata: bytes, body: Any = b"") -> None:
        head = _HEADER.pack(kind, len(metadata), len(body)) + metadata
        try:
            sent = self._socket.sendmsg([head, body])
            if sent < len(head):
                self._socket.sendall(head[sent:])
            if sent < len(head) + len(body):
                self._socket.sendall(memoryview(body)[max(0, sent - len(head)) :])
        except OSError as error:
            if not isinstance(error, ConnectionError):
                self._send_error = error
            self.cancel()  # so that the reading threads of both ends notice
            raise

    # ------------------------------------------------------------ reading

    def opening(self) -> bytes:
        """The first frame of a peer.

        Raises:
            LocalStreamError: it is no opening.
            TimeoutError: it did not come in time.
        """
        self._socket.settimeout(_OPENING_TIMEOUT_S)
        kind, metadata, body = self._next_header() or (_Kind.ERROR, 0, 0)
        if kind != _Kind.OPENING or metadata > _MAX_OPENING_BYTES or body:
            raise LocalStreamError("refused: the stream begins without an opening")
        opening = bytes(self._read_exactly(metadata))
        self._socket.settimeout(None)
        return opening

    def frames(self) -> Frames:
        """Metadata and batch of each frame, until the peer closes the stream.

        Raises:
            LocalStreamError: the peer sent an error, or the stream ended within a frame.
            UnsentFrame: this end could not send a frame.
        """
        schema: pa.Schema | None = None
        while (header := self._next_header()) is not None:
            kind, metadata_bytes, body_bytes = header
            metadata, body = bytes(self._read_exactly(metadata_bytes)), self._read_exactly(body_bytes)
            match kind:
                case _Kind.MESSAGE:
                    yield metadata, None
                case _Kind.SCHEMA:
                    schema = pa.ipc.read_schema(body)
                case _Kind.BATCH:
                    yield metadata, pa.ipc.read_record_batch(body, schema)
                case _Kind.BATCH_WITH_DICTIONARIES:
                    yield metadata, pa.ipc.open_stream(body).read_next_batch()
                case _Kind.ERROR:
                    raise LocalStreamError(metadata.decode())
                case _:
                    raise LocalStreamError(f"unreadable frame of kind {kind}")

    def _next_header(self) -> tuple[int, int, int] | None:
        data = self._file.read(_HEADER.size)
        if not data:
            if self._send_error is not None:
                raise self._cut_off()
            return None
        if len(data) < _HEADER.size:
            raise self._cut_off()
        kind, metadata_bytes, body_bytes = _HEADER.unpack(data)
        return kind, metadata_bytes, body_bytes

    def _read_exactly(self, size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        if self._file.readinto(memoryview(buffer)) < size:  # reads until the end of the stream
            raise self._cut_off()
        return buffer

    def _cut_off(self) -> LocalStreamError:
        if self._send_error is not None:
            return UnsentFrame(f"cannot be sent: {self._send_error}")
        return LocalStreamError("the stream ended within a frame")

    # ------------------------------------------------------------ the end

    def cancel(self) -> None:
        """Cuts the stream: reads and writes of both ends come to their end."""
        with contextlib.suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cancel()
        self._file.close()
        self._socket.close()


class LocalServer:
    """Serves streams to processes of this host, each on a thread of its own. It listens from its construction on.

    Args:
        serve: serves a stream until its end. The peer receives the text of a raised error.
    """

    def __init__(self, serve: Callable[[bytes, LocalStream], None]) -> None:
        self.name = f"weir-{uuid.uuid4().hex}"
        self._serve = serve
        self._lock = threading.Lock()
        self._streams: dict[LocalStream, threading.Thread] = {}
        self._is_closed = False
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.settimeout(None)
        self._listening.bind(f"\0{self.name}")
        self._listening.listen(_BACKLOG)
        self._accepting = threading.Thread(target=self._accept_all, name="local-streams", daemon=True)
        start_thread(self._accepting)

    def _accept_all(self) -> None:
        with self._listening:  # senders use Flight if this thread has ended
            while not self._is_closed:
                try:
                    self._start(LocalStream(self._listening.accept()[0]))
                except OSError:  # closed, or no descriptor is free now
                    time.sleep(_RETRY_S)

    def _start(self, stream: LocalStream) -> None:
        thread = threading.Thread(target=self._run, args=(stream,), name="local-stream", daemon=True)
        with self._lock:
            if self._is_closed:
                stream.close()
                return
            try:
                start_thread(thread)
            except EnvironmentFailure:
                stream.close()
                return
            self._streams[stream] = thread

    def _run(self, stream: LocalStream) -> None:
        try:
            with contextlib.suppress(OSError), stream:
                try:
                    self._serve(stream.opening(), stream)
                except Exception as error:  # noqa: BLE001  (the peer reports it)
                    stream.write_error(str(error))
        finally:
            with self._lock:
                self._streams.pop(stream, None)

    def shut_down(self) -> list[threading.Thread]:
        """Cuts all streams. Returns the threads that are about to end."""
        with self._lock:
            self._is_closed = True
            streams = dict(self._streams)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
        for stream in streams:
            stream.cancel()
        return [self._accepting, *streams.values()]


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))
