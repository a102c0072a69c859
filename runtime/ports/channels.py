"""Ports of the channels between slots."""

from typing import Protocol

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Message


class ExchangeListener(Protocol):
    """Receives the messages and credits of an exchange, on the exchange's threads. Must not block."""

    def on_message(self, channel: ChannelId, message: Message) -> None: ...
    def on_credit(self, channel: ChannelId, nbytes: int) -> None:
        """The receiver has consumed `nbytes` of `channel`, for which this slot is the sender."""

    def on_lost(self, channel: ChannelId, reason: str, is_own: bool = False) -> None:
        """The channel failed before EndOfPartition, and with it the attempt. `is_own`: by a failure of this end."""


class Exchange(Protocol):
    """Channels between the slots of an attempt: reliable, FIFO, fenced by the attempt token.

    `send` and `grant` never block; the caller does flow control (credits). Messages are numbered per channel. A gap, or
    a close without EndOfPartition, is reported by `on_lost`; a repeated message is dropped.
    """

    @property
    def address(self) -> str: ...
    def connect(self, peers: dict[int, str]) -> None:
        """Sets the addresses of the other slots, by slot index."""

    def send(self, channel: ChannelId, target_slot: int, message: Message) -> None: ...
    def grant(self, channel: ChannelId, nbytes: int) -> None: ...
    def close(self) -> None: ...
