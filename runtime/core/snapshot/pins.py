"""Pins: retention keeps the files of a checkpoint while another process reads them.

A pin is a small file in the folder `pins` of the job's storage. It names the folder of a checkpoint and its expiry in
wall-clock time. The reader renews the pin, so a pin expires after its reader has died.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

PINS_FOLDER: Final = "pins"
PIN_VALIDITY_MS: Final = 600_000  #: from each renewal on; the clocks of hosts may differ a little


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """`folder`: of the checkpoint, relative to the job's storage root. `until_ms`: milliseconds since the epoch."""

    folder: str
    until_ms: int


def encode_pin(pin: Pin) -> bytes:
    return msgspec.json.encode(pin)


def decode_pin(data: bytes) -> Pin | None:
    """The pin in `data`, or None if `data` is no pin."""
    try:
        return msgspec.json.decode(data, type=Pin)
    except msgspec.DecodeError:
        return None


def pinned_folders(pins: Iterable[Pin | None], now_ms: int) -> frozenset[str]:
    """The folders of checkpoints with an unexpired pin."""
    return frozenset(pin.folder for pin in pins if pin is not None and pin.until_ms > now_ms)
