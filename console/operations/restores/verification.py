"""The comparison of a checkpoint's files with its manifest, and the result of its last check."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.conf import settings

from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import file_chunks, job_store, job_uri
from console.operations.models import Verification
from runtime.core.snapshot.checksums import Checksum, checksum_fault
from runtime.core.snapshot.manifest import Manifest, Segment
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, is_signed
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected
from runtime.io.store import Store

VERIFIED: Final = "verified"  #: result of a file, and of a state (`spark_jobs.state.check`)


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """The manifest of a checkpoint as it is stored now. `fault`: why it cannot be used; "" if it can."""

    sha256: str = ""
    signature: str = ""  #: whether the manifest is signed, as a sentence
    content: Any = None  #: as JSON
    manifest: Manifest | None = None
    fault: str = ""


def read_manifest(checkpoint: Checkpoint) -> StoredManifest:
    if not checkpoint.is_restorable:
        why = "is discarded" if checkpoint.discarded_at else checkpoint.outcome_words
        return StoredManifest(fault=f"{str(checkpoint).capitalize()} {why}: it has no files to verify.")
    path = f"{checkpoint.path}/{MANIFEST_FILE}"
    try:
        body = job_store(checkpoint.job_id).get(path)
        name = f"{job_uri(checkpoint.job_id)}/{path}"
        manifest = decode_manifest(body, name, settings.WEIR_MANIFEST_KEYS, signed=False)
    except (EnvironmentFailure, JobRejected) as error:
        return StoredManifest(fault=f"The manifest cannot be read: {error}.")
    if (manifest.checkpoint, manifest.token) != (checkpoint.number, checkpoint.token):
        other = f"It is of checkpoint {manifest.checkpoint}, attempt token {manifest.token}"
        return StoredManifest(fault=f"The manifest is not that of this checkpoint. {other}.")
    return StoredManifest(hashlib.sha256(body).hexdigest(), _signature(body), json.loads(body), manifest)


def _signature(body: bytes) -> str:
    if not is_signed(body):
        return "The manifest is not signed."
    if settings.WEIR_MANIFEST_KEYS:
        return "The manifest is signed, and a key of this console verifies the signature."
    return "The manifest is signed. This console has no WEIR_MANIFEST_KEY to verify the signature."


def check_files(
    checkpoint: Checkpoint,
    manifest: Manifest,
    on_read: Callable[[int, int], None] = lambda number, nbytes: None,
    skip: int = 0,
) -> Iterator[str]:
    """The result of each file of a checkpoint but the first `skip`: `VERIFIED`, or the fault.

    `on_read` gets the number of the file, from 1 on, and the number of bytes that were read.

    Raises:
        EnvironmentFailure: the storage cannot be read. A file that does not exist is a fault.
    """
    store = job_store(checkpoint.job_id)
    for number, segment in enumerate(manifest.segments()[skip:], start=skip + 1):
        yield _check(store, segment, partial(on_read, number))


def found_damage(checkpoint: Checkpoint) -> str:
    """The damage that the last check found, as a sentence; "" if it found none, or the files were not checked."""
    last: Verification | None = getattr(checkpoint, "verification", None)
    return str((last.operation.result or {}).get("sentence", "")) if last is not None and last.is_damaged else ""


def is_complete(results: Sequence[str]) -> bool:
    return all(result == VERIFIED for result in results)


def summary(files: Sequence[str], states: Sequence[str]) -> str:
    """The results of all files and states as a sentence. States are read if all files are verified."""
    if bad := len(files) - files.count(VERIFIED):
        return f"{bad} of {len(files)} files are missing or damaged."
    differences = [result for result in states if result != VERIFIED]
    if differences:
        return f"{len(differences)} of {len(states)} states differ from their proofs: {differences[0]}."
    rows = f", and the rows of all {len(states)} states by their proofs"
    if len(states) == 1:
        rows = ", and the rows of its state by their proof"
    return f"The size and checksum of all {len(files)} files were verified{rows if states else ''}."


def _check(store: Store, segment: Segment, on_read: Callable[[int], None]) -> str:
    nbytes = len(segment.content) if segment.is_inline else store.size(segment.path)
    if nbytes is None:
        return "cannot be read: there is no such file"
    if nbytes != segment.nbytes:
        return f"has {nbytes} bytes"
    actual = Checksum()
    try:
        chunks = [segment.content] if segment.is_inline else file_chunks(store, segment.path, nbytes)
        for chunk in chunks:
            actual.update(chunk)
            on_read(len(chunk))
    except CorruptState:  # deleted meanwhile
        return "cannot be read: there is no such file"
    return "was altered: its checksum differs" if checksum_fault(segment.checksum, actual) else VERIFIED
