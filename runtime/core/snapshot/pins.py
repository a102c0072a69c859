"""Pins: while a checkpoint is read by another process, retention leaves its files alone.

A pin is a small file in the folder `pins` of the job's storage. It names the folder of a checkpoint and the wall-clock
time until which it holds. Its reader renews it; so a pin whose reader has died ends by itself.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

PINS_FOLDER: Final = "pins"


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """`folder`: of the checkpoint, below the job's storage root. `until_ms`: since the epoch."""

    folder: str
    until_ms: int


def encode_pin(pin: Pin) -> bytes:
    return msgspec.json.encode(pin)


def decode_pin(data: bytes) -> Pin | None:
    """None: it is no pin."""
    try:
        return msgspec.json.decode(data, type=Pin)
    except msgspec.DecodeError:
        return None


def pinned_folders(pins: Iterable[Pin | None], now_ms: int) -> frozenset[str]:
    """The folders of checkpoints whose files must stay."""
    return frozenset(pin.folder for pin in pins if pin is not None and pin.until_ms > now_ms)
