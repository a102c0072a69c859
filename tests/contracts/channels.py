"""What the channel tests share: a listener that remembers, and one network per kind of exchange."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol, cast

import msgspec
import pyarrow as pa

from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.messages import EndOfPartition, Message, Records
from runtime.io.memory.exchange import MemoryExchange, MemoryHub
from runtime.io.wire import ChannelOpening, encode
from runtime.ports import Exchange

TOKEN = Token(7)
SECRET = "between slots"
PATIENCE_S = 30.0  #: for things that must happen; only a failing test waits this long


class Recorder:
    """An `ExchangeListener` that remembers everything and lets a test wait for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: dict[ChannelId, list[Message]] = defaultdict(list)
        self.credits: dict[ChannelId, int] = defaultdict(int)
        self.losses: list[tuple[ChannelId, str]] = []
        self.own_losses: list[ChannelId] = []
        self.on_arrival: Callable[[ChannelId, Message], None] = lambda channel, message: None

    def on_message(self, channel: ChannelId, message: Message) -> None:
        with self.changed:
            self.messages[channel].append(message)
            self.changed.notify_all()
        self.on_arrival(channel, message)

    def on_credit(self, channel: ChannelId, nbytes: int) -> None:
        with self.changed:
            self.credits[channel] += nbytes
            self.changed.notify_all()

    def on_lost(self, channel: ChannelId, reason: str, is_own: bool = False) -> None:
        with self.changed:
            self.losses.append((channel, reason))
            self.own_losses += [channel] * is_own
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, PATIENCE_S):
                raise AssertionError(f"waited in vain: {what}; losses: {self.losses}")

    def wait_for(self, channel: ChannelId, count: int) -> list[Message]:
        self.wait(lambda: len(self.messages[channel]) >= count or bool(self.losses), f"{count} messages on {channel}")
        return list(self.messages[channel])

    def wait_for_loss(self, channel: ChannelId) -> str:
        self.wait(lambda: any(lost == channel for lost, _ in self.losses), f"loss of {channel}")
        return next(reason for lost, reason in self.losses if lost == channel)


class Network(Protocol):
    """One kind of exchange: makes them, and speaks its wire format for those who break the rules."""

    def exchange(self, slot: int, listener: Recorder, token: Token = TOKEN, secret: str = SECRET) -> Exchange: ...
    def forge(self, address: str, channel: ChannelId, numbered: list[tuple[int, Message]]) -> None:
        """Open `channel` rightly, then send messages under these numbers, as far as the receiver lets them in."""

    def close(self) -> None: ...


class MemoryNetwork:
    def __init__(self) -> None:
        self._hub = MemoryHub()
        self._made: list[MemoryExchange] = []

    def exchange(self, slot: int, listener: Recorder, token: Token = TOKEN, secret: str = SECRET) -> Exchange:
        exchange = MemoryExchange(self._hub, slot, token, listener, secret)
        self._made.append(exchange)
        return exchange

    def forge(self, address: str, channel: ChannelId, numbered: list[tuple[int, Message]]) -> None:
        target = self._hub.find(address)
        assert target is not None
        forger = cast(MemoryExchange, self.exchange(99, Recorder()))
        assert not target.admit(channel, TOKEN, SECRET, forger)
        for number, message in numbered:
            if target.receive(channel, number, message):
                return

    def close(self) -> None:
        for exchange in self._made:
            exchange.close()


class FlightNetwork:
    """As between two hosts."""

    local_streams = False

    def __init__(self) -> None:
        self._made: list[Exchange] = []
        self._streams: list[tuple[Any, Any, Any]] = []

    def exchange(self, slot: int, listener: Recorder, token: Token = TOKEN, secret: str = SECRET) -> Exchange:
        from runtime.io.socket_exchange import SocketExchange

        exchange = SocketExchange(slot, token, secret, listener, local_streams=self.local_streams)
        self._made.append(exchange)
        return exchange

    def stream(self, address: str, channel: ChannelId) -> Any:
        """A rightly opened stream, to write anything to."""
        import pyarrow.flight as fl

        client = fl.connect(address)
        opening = ChannelOpening(TOKEN, SECRET, channel.edge, channel.source, channel.target)
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(msgspec.msgpack.encode(opening)))
        self._streams.append((client, writer, reader))
        return writer

    def forge(self, address: str, channel: ChannelId, numbered: list[tuple[int, Message]]) -> None:
        writer = self.stream(address, channel)
        with contextlib.suppress(*self._breaks()):
            begun = False
            for number, message in numbered:
                if not isinstance(message, Records):
                    writer.write_metadata(encode(number, message))
                    continue
                if not begun:
                    writer.begin(message.payload.schema)
                    begun = True
                writer.write_with_metadata(message.payload, encode(number, message))

    @staticmethod
    def _breaks() -> tuple[type[Exception], ...]:
        import pyarrow.flight as fl

        return (fl.FlightError, OSError)

    def close(self) -> None:
        for _, writer, reader in self._streams:
            reader.cancel()
            with contextlib.suppress(*self._breaks()):
                writer.close()
        for exchange in self._made:
            exchange.close()
        self._streams.clear()


class LocalNetwork(FlightNetwork):
    """As within a host."""

    local_streams = True

    def stream(self, address: str, channel: ChannelId) -> Any:
        from runtime.io.local_stream import LocalStream

        opening = ChannelOpening(TOKEN, SECRET, channel.edge, channel.source, channel.target)
        stream = LocalStream.connect(address.partition(" unix:@")[2], msgspec.msgpack.encode(opening))
        assert stream is not None
        self._streams.append((None, stream, stream))
        return stream


def records(batch: pa.RecordBatch) -> Records:
    return Records(batch, batch.num_rows, max(1, batch.nbytes))


def numbers(start: int, rows: int) -> Records:
    return records(pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())}))


CHANNEL = ChannelId(edge=0, source=0, target=1)
NEIGHBOUR = ChannelId(edge=1, source=0, target=1)


class Pair:
    """Slots 0 and 1, connected."""

    def __init__(self, network: Network, token: Token = TOKEN, secret: str = SECRET) -> None:
        self.heard = (Recorder(), Recorder())
        first = network.exchange(0, self.heard[0], token, secret)
        self.slots = (first, network.exchange(1, self.heard[1]))
        peers = {index: slot.address for index, slot in enumerate(self.slots)}
        for slot in self.slots:
            slot.connect(peers)

    def send(self, *messages: Message, channel: ChannelId = CHANNEL) -> None:
        for message in messages:
            self.slots[0].send(channel, 1, message)

    def received(self, count: int, channel: ChannelId = CHANNEL) -> list[Message]:
        return self.heard[1].wait_for(channel, count)

    @property
    def losses(self) -> list[tuple[ChannelId, str]]:
        return self.heard[0].losses + self.heard[1].losses


def transferred(pair: Pair, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    pair.send(*(records(batch) for batch in batches), EndOfPartition())
    received = pair.received(len(batches) + 1)
    assert not pair.losses
    return [message.payload for message in received if isinstance(message, Records)]
