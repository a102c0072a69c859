"""Output that outlives a power cut, or names the file that could not be written."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from runtime.errors import EnvironmentFailure


def make_folder(folder: Path) -> None:
    """Makes `folder` and those above it, durably; nothing happens where it is there."""
    missing = list(itertools.takewhile(lambda place: not place.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Makes what was created, renamed or removed in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """What fails within fails for `file`: most errors of a full disk name none."""
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(f"{file}: it cannot be written: {error}") from error
