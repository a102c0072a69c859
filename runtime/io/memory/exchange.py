"""Channels between slots that share a process, with the order, fencing and losses of `SocketExchange`.

There are no threads: `send` delivers on the caller's thread before it returns. A listener must therefore only queue
what it receives. Nothing is serialized.
"""

import threading
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.messages import EndOfPartition, Message
from runtime.errors import ProtocolViolation
from runtime.io.wire import LossReporter, MessageNumbers, NumberCheck, refusal_reason
from runtime.ports import ExchangeListener

RECEIVER_GONE: Final = "the receiver is gone"


class MemoryHub:
    """Network between the exchanges of a process."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._exchanges: dict[str, MemoryExchange] = {}

    def attach(self, exchange: "MemoryExchange") -> str:
        address = f"memory://{next(self._numbers)}"
        self._exchanges[address] = exchange
        return address

    def detach(self, address: str) -> None:
        self._exchanges.pop(address, None)

    def find(self, address: str) -> "MemoryExchange | None":
        return self._exchanges.get(address)


class MemoryExchange:
    """Channels of a slot; counterpart of `SocketExchange`."""

    def __init__(self, hub: MemoryHub, slot: int, token: Token, listener: ExchangeListener, secret: str = "") -> None:
        self._hub = hub
        self._slot = slot
        self._token = token
        self._secret = secret
        self._listener = listener
        self._losses = LossReporter(listener)
        self._lock = threading.Lock()
        self._peers: dict[int, str] = {}
        self._sending: dict[ChannelId, _Sending] = {}
        self._receiving: dict[ChannelId, _Receiving] = {}
        self._closed = False
        self._address = hub.attach(self)

    @property
    def address(self) -> str:
        return self._address

    def connect(self, peers: dict[int, str]) -> None:
        self._peers = dict(peers)

    def send(self, channel: ChannelId, target_slot: int, message: Message) -> None:
        if self._closed:
            return
        sending = self._sending.get(channel) or self._open(channel, target_slot)
        if sending.ended:
            raise ProtocolViolation(f"channel {channel}: {type(message).__name__} after EndOfPartition")
        sending.ended = isinstance(message, EndOfPartition)
        if sending.lost:
            return
        number, sending.number = sending.number, sending.number + 1
        peer = self._hub.find(sending.address)
        reason = peer.receive(channel, number, message) if peer is not None else RECEIVER_GONE
        if reason:
            self._lose(channel, reason)

    def grant(self, channel: ChannelId, nbytes: int) -> None:
        with self._lock:
            receiving = self._receiving.setdefault(channel, _Receiving())
            if receiving.sender is None and not receiving.over:
                receiving.early_bytes += nbytes
        if receiving.sender is not None and not receiving.over:
            receiving.sender.on_credit(channel, nbytes)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sent, received = dict(self._sending), dict(self._receiving)
        self._losses.silence()
        self._hub.detach(self._address)
        for channel, sending in sent.items():
            peer = self._hub.find(sending.address)
            if peer is not None and not sending.ended:
                peer.on_sender_closed(channel, self, "the sender closed the channel before EndOfPartition")
        for channel, receiving in received.items():
            if receiving.sender is not None and not receiving.over:
                receiving.sender.on_receiver_lost(channel, "the receiver closed the channel before EndOfPartition")

    # ------------------------------------------------------------ called by the peer's exchange

    def admit(self, channel: ChannelId, token: int, secret: str, sender: "MemoryExchange") -> str:
        """Opens a channel to this slot. Returns the reason of a refusal, or ""."""
        reason = refusal_reason(self._token, self._secret, token, secret)
        if reason is not None:
            return reason
        with self._lock:
            if self._closed:
                return RECEIVER_GONE
            receiving = self._receiving.setdefault(channel, _Receiving())
            if receiving.sender is not None:
                return f"refused: channel {channel} was opened before"
            receiving.sender = sender
            early_bytes, receiving.early_bytes = receiving.early_bytes, 0
        if early_bytes:
            sender.on_credit(channel, early_bytes)
        return ""

    def receive(self, channel: ChannelId, number: int, message: Message) -> str:
        """Takes a message of an open channel. Returns why the channel is lost, or ""."""
        if self._closed:
            return RECEIVER_GONE
        receiving = self._receiving[channel]
        arrival = receiving.numbering.check(number)
        if arrival is NumberCheck.GAP:
            receiving.over = True
            reason = receiving.numbering.describe_gap(number)
            self._losses.report(channel, reason)
            return reason
        if arrival is not NumberCheck.REPEAT and not receiving.over:
            receiving.over = isinstance(message, EndOfPartition)
            self._listener.on_message(channel, message)
        return ""

    def on_credit(self, channel: ChannelId, nbytes: int) -> None:
        if not self._closed:
            self._listener.on_credit(channel, nbytes)

    def on_sender_closed(self, channel: ChannelId, sender: "MemoryExchange", reason: str) -> None:
        """The sender has closed without an EndOfPartition."""
        receiving = self._receiving.get(channel)
        if receiving is not None and receiving.sender is sender and not receiving.over:
            receiving.over = True
            self._losses.report(channel, reason)

    def on_receiver_lost(self, channel: ChannelId, reason: str) -> None:
        """The receiver of a channel is lost."""
        if not self._sending[channel].ended:
            self._lose(channel, reason)

    def _open(self, channel: ChannelId, target_slot: int) -> "_Sending":
        address = self._peers.get(target_slot)
        if address is None:
            raise ProtocolViolation(f"channel {channel}: the address of slot {target_slot} is not known")
        with self._lock:
            sending = self._sending.setdefault(channel, _Sending(address))
        peer = self._hub.find(address)
        reason = peer.admit(channel, self._token, self._secret, self) if peer else f"cannot reach {address}"
        if reason:
            self._lose(channel, reason)
        return sending

    def _lose(self, channel: ChannelId, reason: str) -> None:
        self._sending[channel].lost = True
        self._losses.report(channel, reason)


@dataclass(slots=True)
class _Sending:
    address: str
    number: int = 0  #: of the next message
    ended: bool = False  #: EndOfPartition was sent
    lost: bool = False


@dataclass(slots=True)
class _Receiving:
    sender: MemoryExchange | None = None
    numbering: MessageNumbers = field(default_factory=MessageNumbers)
    early_bytes: int = 0  #: credit granted before the channel was open
    over: bool = False  #: ended, or lost
