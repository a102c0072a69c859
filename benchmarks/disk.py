"""The cost of durable writes on the disk of a folder: the part of a checkpoint's cost that no code can avoid."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from runtime.durable import sync_path

REPETITIONS: Final = 100
_CHUNK_BYTES: Final = 8 << 20
_CHUNKS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCost:
    """The cost of an operation, in milliseconds."""

    act: str
    median_ms: float
    p99_ms: float


def costs(folder: Path, times: int = REPETITIONS) -> list[DiskCost]:
    """Writes and syncs files of the size of a small and a large segment, renames files with a sync of the folder."""
    return [
        _cost("write and fsync 4 KB", lambda number: _write(folder / f"small-{number}", 4 << 10), times),
        _cost("write and fsync 1 MB", lambda number: _write(folder / f"large-{number}", 1 << 20), times),
        _cost("rename and fsync the folder", lambda number: _rename(folder, number), times),
    ]


def _cost(act: str, do: Callable[[int], None], times: int) -> DiskCost:
    took_ms = []
    for number in range(times):
        began = time.perf_counter()
        do(number)
        took_ms.append(1000 * (time.perf_counter() - began))
    return DiskCost(act=act, median_ms=float(np.median(took_ms)), p99_ms=float(np.percentile(took_ms, 99)))


def _write(path: Path, nbytes: int) -> None:
    with path.open("xb") as file:
        file.write(bytes(nbytes))
        file.flush()
        os.fsync(file.fileno())


def _rename(folder: Path, number: int) -> None:
    (folder / f"small-{number}").rename(folder / f"renamed-{number}")
    sync_path(folder)


def write_rate(folder: Path) -> float:
    """The disk's write rate in bytes per second, with an fsync per 8 MB."""
    data, began = os.urandom(_CHUNK_BYTES), time.monotonic()
    with (folder / "rate").open("wb") as file:
        for _ in range(_CHUNKS):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    (folder / "rate").unlink()
    return _CHUNKS * len(data) / (time.monotonic() - began)
