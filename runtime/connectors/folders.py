"""Folders whose entries outlive a power cut."""

import itertools
import os
from pathlib import Path


def make(folder: Path) -> None:
    """Makes `folder` and those above it, durably; nothing happens where it is there."""
    missing = list(itertools.takewhile(lambda place: not place.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)


def sync(folder: Path) -> None:
    """Makes what was created, renamed or removed in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
