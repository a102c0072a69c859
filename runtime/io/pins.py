"""Pins as files in the storage of a job; see `core.snapshot.pins`.

A reader pins a checkpoint before it opens the manifest. Retention deletes the manifest, checks the pins again, and only
then deletes the other files. So either the reader finds no manifest, or retention finds the pin.
"""

import secrets
from dataclasses import dataclass, field
from typing import Final

import structlog

from runtime.clock import SystemClock
from runtime.core.snapshot.pins import PIN_VALIDITY_MS, PINS_FOLDER, Pin, decode_pin, encode_pin, pinned_folders
from runtime.errors import CorruptState, EnvironmentFailure
from runtime.io.store import open_store
from runtime.ports import SnapshotStore

RENEWAL_INTERVAL_MS: Final = 60_000
#: age at which an expired pin is deleted: its reader may be about to renew it
EXPIRED_PIN_RETENTION_MS: Final = 3_600_000

log = structlog.get_logger()


@dataclass
class PinnedCheckpoint:
    """Pin of a single reader. Survives pickle: each task of a reader renews the same pin.

    Args:
        root: storage root of the job.
        folder: of the checkpoint, below `root`.
    """

    root: str
    folder: str
    _name: str = field(default_factory=lambda: f"{PINS_FOLDER}/{secrets.token_hex(8)}.json")
    _written_ms: int = 0

    def renew(self) -> None:
        """Writes the pin, unless it was written a short while ago. Warns if the storage is not writable."""
        now = SystemClock().now_ms()
        if now - self._written_ms < RENEWAL_INTERVAL_MS:
            return
        self._written_ms = now
        pin = Pin(folder=self.folder, until_ms=now + PIN_VALIDITY_MS)
        try:
            open_store(self.root).put(self._name, [encode_pin(pin)])
        except EnvironmentFailure as error:
            log.warning("retention may delete the checkpoint while it is read", folder=self.folder, error=str(error))


def active_pin_folders(store: SnapshotStore, now_ms: int) -> frozenset[str]:
    """Folders of checkpoints that are being read. Deletes pins that expired long ago."""
    pins: dict[str, Pin | None] = {}
    for path in store.list(f"{PINS_FOLDER}/"):
        try:
            pins[path] = decode_pin(store.get(path))
        except CorruptState:
            continue  # another master has deleted it
    store.delete(
        [path for path, pin in pins.items() if pin is not None and pin.until_ms + EXPIRED_PIN_RETENTION_MS < now_ms]
    )
    return pinned_folders(pins.values(), now_ms)
