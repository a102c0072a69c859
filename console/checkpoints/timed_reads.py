"""Reads of storage with a time limit: storage may hang, while a web thread has requests and the reconciler other runs.

A read cannot be cancelled, so it has a thread of its own, which ends when the storage answers. The next pass or request
asks for the same read again and gets its result. Each read therefore has a single thread.
"""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import load_manifest, load_pinned_manifest, recorded_states, target_place
from runtime.core.snapshot.contents import StoredState
from runtime.core.snapshot.manifest import Manifest

TIMEOUT_S: Final = 2.0
KEPT_S: Final = 30.0  #: retention of a result that no caller has taken
MAX_HANGING: Final = 32  #: with so many threads that hang, no further read begins

T = TypeVar("T")


@dataclass(slots=True)
class _Read:
    begun_s: float
    ended_s: float | None = None
    result: Future[Any] = field(default_factory=Future)

    @property
    def is_hanging(self) -> bool:
        return self.ended_s is None and time.monotonic() - self.begun_s >= TIMEOUT_S

    @property
    def is_stale(self) -> bool:
        return self.ended_s is not None and time.monotonic() - self.ended_s >= KEPT_S


_reads: dict[Hashable, _Read] = {}  #: by key, the reads whose result has not been taken
_lock: Final = threading.Lock()


def load_manifest_in_time(checkpoint: Checkpoint) -> Manifest:
    """As `storage.load_manifest`.

    Raises:
        Refused: as `storage.load_manifest`, or the storage does not answer in time.
    """
    return read_in_time(("manifest", checkpoint.pk), partial(load_manifest, checkpoint))


def load_pinned_manifest_in_time(checkpoint: Checkpoint) -> Manifest:
    """As `storage.load_pinned_manifest`.

    Raises:
        Refused: as `storage.load_pinned_manifest`, or the storage does not answer in time.
    """
    return read_in_time(("pinned manifest", checkpoint.pk), partial(load_pinned_manifest, checkpoint))


def recorded_states_in_time(checkpoint: Checkpoint) -> tuple[StoredState, ...]:
    """As `storage.recorded_states`.

    Raises:
        Refused: as `storage.recorded_states`, or the storage does not answer in time.
    """
    return read_in_time(("states", checkpoint.pk), partial(recorded_states, checkpoint))


def require_target_in_time(path: str) -> None:
    """As `storage.target_place`, for a request: a worker finds the folder again.

    Raises:
        Refused: as `storage.target_place`, or the storage does not answer in time.
    """
    read_in_time(("target", path), partial(target_place, path))


def read_in_time(key: Hashable, load: Callable[[], T], storage: str = "Checkpoint storage") -> T:
    """The result of `load`, which reads from storage and runs no query. `key`: names the read with its arguments.

    While another read hangs, it does not wait: all checkpoints share a storage.

    Raises:
        Refused: the storage does not answer in time.
    """
    with _lock:
        hanging = sum(read.is_hanging for read in _reads.values())
        read = _find_or_start(key, load, may_start=hanging < MAX_HANGING)
    if read is not None:
        wait([read.result], 0 if hanging else TIMEOUT_S)
    if read is None or not read.result.done():
        detail = f"{storage} does not answer. Nothing was changed; try again."
        refused = Refused("storage-away", detail, status=HTTPStatus.SERVICE_UNAVAILABLE)
        raise refused from TimeoutError("it does not answer")
    with _lock:
        if _reads.get(key) is read:
            del _reads[key]
    value: T = read.result.result()
    return value


def _find_or_start(key: Hashable, load: Callable[[], Any], *, may_start: bool) -> _Read | None:
    for stale_key in [name for name, read in _reads.items() if read.is_stale]:
        del _reads[stale_key]
    if key in _reads or not may_start:
        return _reads.get(key)
    read = _Read(time.monotonic())
    threading.Thread(target=_run, args=(load, read), name="storage-read", daemon=True).start()
    _reads[key] = read  # only now: if no thread can be started, the next pass tries again
    return read


def _run(load: Callable[[], Any], read: _Read) -> None:
    try:
        value = load()
    except Exception as error:  # noqa: BLE001 - the reader raises it
        read.ended_s = time.monotonic()
        read.result.set_exception(error)
    else:
        read.ended_s = time.monotonic()
        read.result.set_result(value)
