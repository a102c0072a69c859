"""Reads of manifests with a time limit: storage may hang, and the reconciler must watch other runs.

A read cannot be cancelled, so it has a thread of its own, which ends when the storage answers. The next pass or request
asks for the same read again and gets its result. Each operation, and each page, therefore has a single thread.
"""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar
from uuid import UUID

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import load_manifest
from console.operations.models import ACTIVE_STATES, Operation
from runtime.core.snapshot.manifest import Manifest

TIMEOUT_S: Final = 2.0

T = TypeVar("T")
_reads: dict[Hashable, Future[Any]] = {}  #: by operation or page, the reads whose result has not been taken


def load_manifest_in_time(checkpoint: Checkpoint, operation: UUID) -> Manifest:
    """As `storage.load_manifest`, for an operation that restores the checkpoint.

    Raises:
        Refused: as `storage.load_manifest`, or the storage does not answer in time.
    """
    return read_in_time(operation, partial(load_manifest, checkpoint))


def read_in_time(key: Hashable, load: Callable[[], T]) -> T:
    """The result of `load`, which reads from storage. `key`: the id of its operation, or a name of the read of a page.

    While another read hangs, it does not wait: all checkpoints share a storage.

    Raises:
        Refused: the storage does not answer in time.
    """
    is_hanging = any(not read.done() for read in list(_reads.values()))
    read = _reads.get(key) or _start_read(key, load)
    wait([read], 0 if is_hanging else TIMEOUT_S)
    if not read.done():
        detail = "Checkpoint storage does not answer. Nothing was changed; try again."
        refused = Refused("storage-away", detail, status=HTTPStatus.SERVICE_UNAVAILABLE)
        raise refused from TimeoutError("it does not answer")
    _reads.pop(key, None)
    found: T = read.result()
    return found


def _start_read(key: Hashable, load: Callable[[], Any]) -> Future[Any]:
    _forget_untaken()
    read = Future[Any]()
    threading.Thread(target=_read, args=(load, read), name="manifest-read", daemon=True).start()
    _reads[key] = read  # only now: if no thread can be started, the next pass tries again
    return read


def _forget_untaken() -> None:
    """Drops results that no pass will take, because the operation was withdrawn meanwhile, and those of pages."""
    done = {key for key, read in list(_reads.items()) if read.done()}
    if operations := [key for key in done if isinstance(key, UUID)]:
        done.difference_update(
            Operation.objects.filter(pk__in=operations, state__in=ACTIVE_STATES).values_list("pk", flat=True)
        )
    for key in done:
        _reads.pop(key, None)


def _read(load: Callable[[], Any], read: Future[Any]) -> None:
    try:
        found = load()
    except Exception as error:  # noqa: BLE001 - the reader raises it
        read.set_exception(error)
    else:
        read.set_result(found)
