"""Reads of manifests with a time limit, for the reconciler: storage may hang, and other runs must be watched.

A read cannot be cancelled, so it has a thread of its own, which ends when the storage answers. The next pass asks for
the same read again and gets its result. Each operation therefore has a single thread.
"""

import threading
from concurrent.futures import Future, wait
from http import HTTPStatus
from typing import Final
from uuid import UUID

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import load_manifest
from console.operations.models import ACTIVE_STATES, Operation
from runtime.core.snapshot.manifest import Manifest

TIMEOUT_S: Final = 2.0

_reads: dict[UUID, Future[Manifest]] = {}  #: by operation, the reads whose result no pass has taken


def load_manifest_in_time(checkpoint: Checkpoint, operation: UUID) -> Manifest:
    """As `storage.load_manifest`, for an operation that restores the checkpoint.

    While another read hangs, it does not wait: all checkpoints share a storage.

    Raises:
        Refused: as `storage.load_manifest`, or the storage does not answer in time.
    """
    is_hanging = any(not read.done() for read in _reads.values())
    read = _reads.get(operation) or _start_read(checkpoint, operation)
    wait([read], 0 if is_hanging else TIMEOUT_S)
    if not read.done():
        detail = "Checkpoint storage does not answer. Nothing was changed; try again."
        refused = Refused("storage-away", detail, status=HTTPStatus.SERVICE_UNAVAILABLE)
        raise refused from TimeoutError("it does not answer")
    return _reads.pop(operation).result()


def _start_read(checkpoint: Checkpoint, operation: UUID) -> Future[Manifest]:
    _forget_ended_operations()
    read = Future[Manifest]()
    threading.Thread(target=_read, args=(checkpoint, read), name="manifest-read", daemon=True).start()
    _reads[operation] = read  # only now: if no thread can be started, the next pass tries again
    return read


def _forget_ended_operations() -> None:
    """Drops results that no pass will take, because the operation was withdrawn meanwhile."""
    if done := [operation for operation, read in _reads.items() if read.done()]:
        active = Operation.objects.filter(pk__in=done, state__in=ACTIVE_STATES).values_list("pk", flat=True)
        for operation in set(done).difference(active):
            del _reads[operation]


def _read(checkpoint: Checkpoint, read: Future[Manifest]) -> None:
    try:
        manifest = load_manifest(checkpoint)
    except Exception as error:  # noqa: BLE001 - the pass raises it
        read.set_exception(error)
    else:
        read.set_result(manifest)
