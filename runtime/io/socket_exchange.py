"""Channels between two slots: over Arrow Flight between hosts, and over Unix sockets within a host.

A channel has a DoExchange stream of Flight on a connection of its own. Within a host, a `LocalStream` takes its place.
The address of a slot names both.

A slot holds at most one subtask of each operator, so a channel serves a single edge between two slots. It has a single
schema, and another channel that waits for credit cannot block it. Records and control messages flow in one direction;
credits return on the same exchange. Flow control is decided elsewhere: this module transports credits.

Traps of Flight that shape this module:
- gRPC does not survive a fork: import this module only in the process that uses it.
- A stream ends alike when its sender dies and when it finishes; only `EndOfPartition` marks a proper end.
- `shutdown` waits for open streams for ever, and a server cannot cancel them: their sockets are shut down.
- A writer must not be used once its handler has returned: the thread that writes credits ends first.
- A reader that reaches the end of its stream ends the writing side too. A concurrent `done_writing` aborts the process,
  so a sender never calls it.
- Columns in gRPC's buffer are seldom aligned to eight bytes, and numpy is slow on unaligned data: they are copied.
"""

import contextlib
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from runtime.clock import Deadline
from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.messages import EndOfPartition, Message, Records
from runtime.errors import EnvironmentFailure, ProtocolViolation
from runtime.io.local_stream import Frames, LocalServer, LocalStream, UnsentFrame
from runtime.io.sockets import SocketAddress, shut_down_connections, socket_address
from runtime.io.threads import start_thread
from runtime.io.wire import ChannelOpening, LossReporter, MessageNumbers, NumberCheck, decode, encode, refusal_reason
from runtime.ports import ExchangeListener

FLUSH_TIMEOUT_S: Final = 1.0  #: how long `close` lets ended channels deliver queued messages
CLOSE_TIMEOUT_S: Final = 1.9  #: how long `close` may take altogether
_SEVER_INTERVAL_S: Final = 0.02
_CREDIT_FORMAT: Final = struct.Struct("<Q")  #: bytes consumed
_CLIENT_OPTIONS: Final = [("grpc.enable_http_proxy", 0)]  # slots connect directly, whatever http_proxy is set to
_STREAM_ERRORS: Final = (fl.FlightError, OSError)  #: raised by reads and writes of a broken stream
_DISCONNECT_ERRORS: Final = (fl.FlightUnavailableError, fl.FlightCancelledError, ConnectionError)
_LOCAL: Final = " unix:@"  #: in an address, between the location of Flight and the name of the local server
_ENCODING_ERRORS: Final = (pa.ArrowException, ValueError, TypeError)


class SocketExchange:
    """Channels of a slot; implements `ports.Exchange`. It listens from its construction on.

    Credit for a channel that is not open yet is kept; credit for a channel that has ended is dropped. `close` must not
    be called from the listener.

    Args:
        local_streams: whether channels between slots of one host leave out Flight.
    """

    def __init__(
        self,
        slot: int,
        token: Token,
        secret: str,
        listener: ExchangeListener,
        host: str = "127.0.0.1",
        *,
        local_streams: bool = True,
    ) -> None:
        self._slot = slot
        self._token = token
        self._secret = secret
        self._listener = listener
        self._losses = LossReporter(listener)
        self._lock = threading.Lock()
        self._closing = False
        self._peers: dict[int, str] = {}
        self._senders: dict[ChannelId, _Sender] = {}
        self._receivers: dict[ChannelId, _Receiver] = {}
        self._server = _Server(f"grpc://{host}:0", self._serve)
        self._address = f"grpc://{host}:{self._server.port}"
        self._local: LocalServer | None = None
        if local_streams:
            self._local = LocalServer(lambda command, stream: self._serve(command, stream.frames(), stream))
            self._address += f"{_LOCAL}{self._local.name}"

    @property
    def address(self) -> str:
        return self._address

    def connect(self, peers: dict[int, str]) -> None:
        self._peers = dict(peers)

    def send(self, channel: ChannelId, target_slot: int, message: Message) -> None:
        sender = self._senders.get(channel) or self._open(channel, target_slot)
        if sender is not None:
            sender.send(message)

    def grant(self, channel: ChannelId, nbytes: int) -> None:
        self._receiver(channel).grant(nbytes)

    def close(self) -> None:
        """Ends every channel. A channel with a queued `EndOfPartition` may deliver it first; all others are cut off."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            senders = tuple(self._senders.values())
        self._losses.silence()
        deadline = Deadline(CLOSE_TIMEOUT_S)
        _flush(senders)
        for sender in senders:
            sender.cancel()
        stopping = threading.Thread(target=self._server.shutdown, name=f"slot-{self._slot}-shutdown", daemon=True)
        with contextlib.suppress(EnvironmentFailure):  # else the server ends with its process
            start_thread(stopping)
        port = self._server.port
        local = () if self._local is None else self._local.shut_down()
        waiting = [stopping, *local, *(sender.thread for sender in senders)]
        while (waiting := [thread for thread in waiting if thread.is_alive()]) and not deadline.has_passed:
            hanging = {sender.target for sender in senders if sender.is_connecting}
            shut_down_connections(lambda address, peer: address[1] == port or peer in hanging)  # noqa: B023  (called at once)
            waiting[0].join(_SEVER_INTERVAL_S)

    def _open(self, channel: ChannelId, target_slot: int) -> "_Sender | None":
        address = self._peers.get(target_slot)
        if address is None:
            raise ProtocolViolation(f"channel {channel}: the address of slot {target_slot} is not known")
        if self._local is None:
            address = address.partition(_LOCAL)[0]
        opening = ChannelOpening(self._token, self._secret, channel.edge, channel.source, channel.target)
        with self._lock:
            if self._closing:
                return None
            if channel not in self._senders:
                self._senders[channel] = _Sender(opening, address, self._listener, self._losses)
            return self._senders[channel]

    # ------------------------------------------------------------ receiving

    def _receiver(self, channel: ChannelId) -> "_Receiver":
        with self._lock:
            return self._receivers.setdefault(channel, _Receiver(channel))

    def _admit(self, command: bytes) -> "_Receiver":
        """Authenticates the sender of a stream. The raised error is the refusal that a peer receives."""
        try:
            opening = msgspec.msgpack.decode(command, type=ChannelOpening)
        except msgspec.DecodeError as error:
            raise fl.FlightUnauthenticatedError(f"refused: {error}") from error
        reason = refusal_reason(self._token, self._secret, opening.token, opening.secret)
        if reason is not None:
            raise fl.FlightUnauthenticatedError(reason)
        receiver = self._receiver(opening.channel)
        if not receiver.claim():
            raise fl.FlightUnauthorizedError(f"refused: channel {opening.channel} was opened before")
        return receiver

    def _serve(self, command: bytes, frames: Frames, writer: Any) -> None:
        """Serves a stream until its end, on a thread of the server. The sender receives the raised error."""
        receiver = self._admit(command)
        reason = "the listener failed"
        with receiver.returning_credits(writer):
            try:
                reason = self._receive(receiver, frames)
            finally:
                if reason:
                    self._losses.report(receiver.channel, reason, receiver.has_failed)
        if reason:
            raise fl.FlightServerError(reason)

    def _receive(self, receiver: "_Receiver", frames: Frames) -> str:
        """Delivers messages to the listener. Returns why the channel is lost, or "" after `EndOfPartition`."""
        for number, message in receiver.messages(frames):
            arrival = receiver.numbering.check(number)
            if arrival is NumberCheck.GAP:
                return receiver.numbering.describe_gap(number)
            if arrival is NumberCheck.REPEAT:
                continue
            self._listener.on_message(receiver.channel, message)
            if isinstance(message, EndOfPartition):
                return ""
        return receiver.break_reason


class _Server(fl.FlightServerBase):  # type: ignore[misc]
    """Forwards every exchange; all other Flight calls stay refused."""

    def __init__(self, location: str, serve: Callable[[bytes, Frames, Any], None]) -> None:
        super().__init__(location)
        self._serve = serve

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._serve(descriptor.command or b"", _frames(reader), writer)


def _frames(reader: Any) -> Frames:
    """Frames as those of a `LocalStream`, from a reader of Flight."""
    for chunk in reader:
        metadata = chunk.app_metadata.to_pybytes() if chunk.app_metadata else b""
        yield metadata, None if chunk.data is None else chunk.data.copy_to(pa.default_cpu_memory_manager())


class _Receiver:
    """Receiving end of a channel, and the thread that returns its credits."""

    def __init__(self, channel: ChannelId) -> None:
        self.channel = channel
        self.numbering = MessageNumbers()
        self.break_reason = "the sender closed the channel before EndOfPartition"
        self.has_failed = False  #: the channel is lost by a failure of this end
        self._credits: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._is_over = False
        self._claim_lock = threading.Lock()

    def claim(self) -> bool:
        """True for the first stream of this channel. A sender never opens a second stream."""
        return self._claim_lock.acquire(blocking=False)

    def grant(self, nbytes: int) -> None:
        if not self._is_over:
            self._credits.put(nbytes)

    def messages(self, frames: Frames) -> Iterator[tuple[int, Message]]:
        """Messages with their numbers, until the stream ends or breaks."""
        try:
            for metadata, batch in frames:
                yield decode(metadata, batch)
        except (*_STREAM_ERRORS, ValueError) as error:
            self.break_reason = f"broken before EndOfPartition: {error}"
            self.has_failed = isinstance(error, UnsentFrame)

    @contextlib.contextmanager
    def returning_credits(self, writer: Any) -> Iterator[None]:
        thread = threading.Thread(
            target=self._return_credits, args=(writer,), name=f"grants-{self.channel}", daemon=True
        )
        start_thread(thread)
        try:
            yield
        finally:
            self._is_over = True
            self._credits.put(None)
            thread.join()

    def _return_credits(self, writer: Any) -> None:
        """Sends credits to the sender of the channel. Queued grants are combined into a single message."""
        with contextlib.suppress(*_STREAM_ERRORS):  # the thread that reads the stream reports the break
            while (nbytes := self._credits.get()) is not None:
                while not self._credits.empty():
                    grant = self._credits.get()
                    if grant is None:
                        return
                    nbytes += grant
                writer.write_metadata(_CREDIT_FORMAT.pack(nbytes))


class _Sender:
    """Sending end of a channel: a queue, a thread that writes its messages, and a thread that reads credits.

    The queue is unbounded: the caller sends records only for credit that it has.
    """

    def __init__(self, opening: ChannelOpening, address: str, listener: ExchangeListener, losses: LossReporter) -> None:
        self.ended = False  #: EndOfPartition was queued
        self._channel = opening.channel
        self._opening = msgspec.msgpack.encode(opening)
        self._address, _, self._local_name = address.partition(_LOCAL)
        self._listener = listener
        self._losses = losses
        self._queue: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_over = False
        self._has_failed = False  #: the channel is lost by a failure of this end
        self._end_written = False
        self._schema: pa.Schema | None = None
        self._reader: Any = None
        self.thread = threading.Thread(target=self._run, name=f"send-{self._channel}", daemon=True)
        start_thread(self.thread)

    def send(self, message: Message) -> None:
        if self.ended:
            raise ProtocolViolation(f"channel {self._channel}: {type(message).__name__} after EndOfPartition")
        self.ended = isinstance(message, EndOfPartition)
        if not self._is_over:
            self._queue.put(message)

    @cached_property  # it may ask a name server
    def target(self) -> SocketAddress:
        return socket_address(self._address)

    @property
    def is_connecting(self) -> bool:
        return self.thread.is_alive() and self._reader is None

    def cancel(self) -> None:
        """Cuts the stream. Safe at any moment, from any thread."""
        self._is_over = True
        self._queue.put(None)
        if self._reader is not None:
            self._reader.cancel()

    def _run(self) -> None:
        try:
            if self._local_name and (local := LocalStream.connect(self._local_name, self._opening)):
                with local:
                    self._exchange(local, local, local.frames())
                return
            with fl.connect(self._address, generic_options=_CLIENT_OPTIONS) as client:
                writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(self._opening))
                self._exchange(writer, reader, _frames(reader))
        except (*_STREAM_ERRORS, pa.ArrowException) as error:
            self._losses.report(self._channel, f"cannot reach {self._address}: {error}")

    def _exchange(self, writer: Any, reader: Any, frames: Frames) -> None:
        self._reader = reader
        if self._is_over:  # `cancel` came before there was a reader
            reader.cancel()
        name = f"credits-{self._channel}"
        hearing = threading.Thread(target=self._receive_credits, args=(frames,), name=name, daemon=True)
        reason = "the writing thread failed"
        try:
            start_thread(hearing)
            self._write_all(writer)
            reason = ""
        except EnvironmentFailure as error:
            reason = str(error)
        except _ENCODING_ERRORS as error:
            reason = f"cannot be sent: {error}"
        finally:
            if reason:
                self._losses.report(self._channel, reason, is_own=True)
                self.cancel()
            if hearing.is_alive():
                hearing.join()
            with contextlib.suppress(*_STREAM_ERRORS):
                writer.close()

    def _write_all(self, writer: Any) -> None:
        """Writes until the channel ends or breaks. The thread that reads credits reports the reason of a break."""
        number = 0
        with contextlib.suppress(*_STREAM_ERRORS):
            while (message := self._queue.get()) is not None:
                self._end_written = isinstance(message, EndOfPartition)
                self._write(writer, message, encode(number, message))
                number += 1
                if self._end_written:
                    return  # the receiver ends the stream

    def _write(self, writer: Any, message: Message, metadata: bytes) -> None:
        if not isinstance(message, Records):
            writer.write_metadata(metadata)
            return
        batch = message.payload
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"{type(batch).__name__} is no record batch")
        if self._schema is None:
            self._schema = batch.schema
            writer.begin(self._schema)
        elif batch.schema is not self._schema and not batch.schema.equals(self._schema):
            batch = batch.cast(self._schema)  # a stream has one schema
        writer.write_with_metadata(batch, metadata)

    def _receive_credits(self, frames: Frames) -> None:
        reason = "the listener failed"
        try:
            reason = self._read_credits(frames)
        finally:
            if reason:
                self._losses.report(self._channel, reason, self._has_failed)
            self._is_over = True
            self._queue.put(None)  # ends the writing thread

    def _read_credits(self, frames: Frames) -> str:
        """Reads credits. Returns why the channel is lost, or "". After `EndOfPartition` a disconnect is no loss."""
        try:
            for metadata, _ in frames:
                self._listener.on_credit(self._channel, _CREDIT_FORMAT.unpack(metadata)[0])
        except _DISCONNECT_ERRORS as error:
            return "" if self._end_written else f"the receiver is gone: {error}"
        except _STREAM_ERRORS as error:
            self._has_failed = isinstance(error, UnsentFrame)
            return str(error)
        return "" if self._end_written else "the receiver closed the channel before EndOfPartition"


def _flush(senders: tuple[_Sender, ...]) -> None:
    deadline = Deadline(FLUSH_TIMEOUT_S)
    for sender in senders:
        if sender.ended:
            sender.thread.join(deadline.remaining_s)
