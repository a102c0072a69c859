"""A small disk for the files of a target: full, read-only, or stalled. Mounting needs the rights of root."""

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


@contextmanager
def freezable_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own at `folder` that can be frozen: ext4 in a file."""
    image = folder.with_suffix(".img")
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(48 << 20)
    for command in (["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            pytest.skip(f"no file system can be made here: {error}")
        if done.returncode:
            pytest.skip(f"no file system can be made here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Every write to the disk, and every change of a name, waits until the block ends (fsfreeze).

    The helper thaws the disk when its input ends, so a test that is killed leaves no process behind that waits for
    ever.
    """
    script = 'fsfreeze --freeze "$1" && echo frozen && read line; fsfreeze --unfreeze "$1"'
    with subprocess.Popen(
        ["sh", "-c", script, "sh", str(disk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as helper:
        assert helper.stdout is not None, "it is a pipe"
        assert helper.stdout.readline() == "frozen\n", f"{disk} cannot be frozen"
        assert helper.stdin is not None, "it is a pipe"
        try:
            yield
        finally:
            helper.stdin.close()


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
