"""A small disk for the files of a target: full, read-only, or stalled. Mounting needs the rights of root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import until


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 16 MiB at `folder`, in memory."""
    with _mounted(folder, ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]):
        yield folder


@contextmanager
def freezable_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own at `folder` that can be frozen: ext4 in a file."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(48 << 20)
    with _mounted(folder, ["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        yield folder


@contextmanager
def _mounted(folder: Path, *commands: list[str]) -> Iterator[None]:
    """The commands make a file system and mount it at a new folder. The test is skipped if they fail."""
    folder.mkdir()
    for command in commands:
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be made here: {error} {getattr(error, 'stderr', '')}")
    try:
        yield
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
        remount = ["mount", "-o", "remount,bind,ro", str(disk)]
        until(lambda: subprocess.run(remount, check=False).returncode == 0)  # busy while a file is written
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
