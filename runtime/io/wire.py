"""Rules that both ends of a connection share: authentication, message numbers, encoding.

Real channels and their in-memory counterparts use the same rules, so both fence peers and detect gaps alike. No I/O.
"""

import hmac
import struct
import threading
from enum import Enum, auto
from typing import Any, Final

import msgspec

from runtime.core.job.ids import ChannelId, Token
from runtime.core.job.messages import (
    Barrier,
    CancelBarrier,
    EndOfData,
    EndOfPartition,
    Idle,
    Message,
    Records,
    TerminationMarker,
    Watermark,
)
from runtime.ports import ExchangeListener

# ---------------------------------------------------------------- authentication


class ChannelOpening(msgspec.Struct, frozen=True, array_like=True):
    """First message of a sender on a channel."""

    token: int
    secret: str
    edge: int
    source: int
    target: int

    @property
    def channel(self) -> ChannelId:
        return ChannelId(self.edge, self.source, self.target)


def refusal_reason(token: Token, secret: str, shown_token: int, shown_secret: str) -> str | None:
    """Why a peer with these credentials may not connect to the attempt `token`; None if it may."""
    if not hmac.compare_digest(secret.encode(), shown_secret.encode()):
        return "refused: wrong secret"
    if shown_token != token:
        age = "older" if shown_token < token else "newer"
        return f"refused: attempt token {shown_token} is {age} than {token}"
    return None


# ---------------------------------------------------------------- numbers


class NumberCheck(Enum):
    """Meaning of a message's number to the receiver."""

    NEXT = auto()
    REPEAT = auto()
    GAP = auto()


class MessageNumbers:
    """Receiver's position in a channel: the number that is expected next."""

    def __init__(self) -> None:
        self.expected = 0

    def check(self, number: int) -> NumberCheck:
        if number < self.expected:
            return NumberCheck.REPEAT
        if number > self.expected:
            return NumberCheck.GAP
        self.expected += 1
        return NumberCheck.NEXT

    def describe_gap(self, number: int) -> str:
        return f"message {self.expected} is missing: {number} came instead"


# ---------------------------------------------------------------- bytes

_HEADER: Final = struct.Struct("<QB")  #: number of the message, index into _MESSAGE_TYPES
#: The index of a type is part of the wire format: append types only.
_MESSAGE_TYPES: Final = (None, Barrier, CancelBarrier, Watermark, Idle, EndOfData, EndOfPartition, TerminationMarker)
_TYPE_INDEX: Final[dict[type, int]] = {kind: index for index, kind in enumerate(_MESSAGE_TYPES) if kind is not None}
_DECODERS: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in _MESSAGE_TYPES if kind is not None)
#: Fields of _HEADER, rows, nbytes, end, keys. The name of the split follows; the batch travels separately.
_RECORDS_HEADER: Final = struct.Struct("<QBQQqQ")


def encode(number: int, message: Message) -> bytes:
    """The bytes of a message, without the batch of a `Records`."""
    if isinstance(message, Records):
        header = _RECORDS_HEADER.pack(number, 0, message.rows, message.nbytes, message.end, message.keys)
        return header + message.split.encode() if message.split else header
    return _HEADER.pack(number, _TYPE_INDEX[type(message)]) + msgspec.msgpack.encode(message)


def decode(data: bytes, payload: Any) -> tuple[int, Message]:
    """The inverse of `encode`; `payload` is the batch that came with it, if any.

    Raises:
        ValueError: the bytes are not a message.
    """
    try:
        number, kind = _HEADER.unpack_from(data)
        if kind == 0:
            if payload is None:
                raise ValueError("records without a batch")
            _, _, rows, nbytes, end, keys = _RECORDS_HEADER.unpack_from(data)
            return number, Records(payload, rows, nbytes, data[_RECORDS_HEADER.size :].decode(), end, keys)
        message: Message = _DECODERS[kind - 1].decode(data[_HEADER.size :])
    except (struct.error, IndexError, msgspec.DecodeError) as error:
        raise ValueError(f"unreadable message: {error}") from error
    return number, message


# ---------------------------------------------------------------- losses


class LossReporter:
    """Reports each lost channel to a listener once, and no channel after `silence`."""

    def __init__(self, listener: ExchangeListener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._reported: set[ChannelId] = set()
        self._is_silenced = False

    def report(self, channel: ChannelId, reason: str, is_own: bool = False) -> None:
        with self._lock:
            if self._is_silenced or channel in self._reported:
                return
            self._reported.add(channel)
        self._listener.on_lost(channel, reason, is_own)

    def silence(self) -> None:
        with self._lock:
            self._is_silenced = True
