"""A small disk for the files of a target, which can be full or read-only. Mounting needs the rights of root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str = "16m") -> Iterator[Path]:
    """A file system of its own at `folder`, in memory."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def delete_folder(folder: Path) -> None:
    """Removes a folder in which a job still makes files, all at once."""
    folder.rename(folder.with_name(f"{folder.name}-deleted"))


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Every write to the disk fails with ENOSPC."""
    filler = disk / ".filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Every file that is opened for writing by its path fails with EROFS."""
    subprocess.run(["mount", "--bind", str(disk), str(disk)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(disk)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
