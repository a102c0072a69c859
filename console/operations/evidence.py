"""The evidence pack of a checkpoint: its manifest, a check of every file, its review and its restore drills.

The check reads files in the process that answers the request, up to `MAX_BYTES`. Larger snapshots have their sizes
checked. A restore drill reads the state of all operators but sinks.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import job_root, pin
from console.operations.clones import drills_of
from console.operations.models import Operation
from console.operations.reviews import review_history
from runtime.core.snapshot.manifest import Segment
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest
from runtime.errors import CorruptState, JobRejected

MAX_BYTES: Final = 256 << 20  #: read for checksums
MAX_ENTRIES: Final = 200  #: of the review and of drills
_CHUNK_BYTES: Final = 1 << 20
_ALGORITHM: Final = "blake2b"
_DIGEST_BYTES: Final = 16  #: as in `runtime.state.files.segments`
VERIFIED, SIZE_ONLY = "verified", "size only"


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A file of a checkpoint, or a segment inside its manifest. `result`: `VERIFIED`, `SIZE_ONLY`, or the fault."""

    path: str
    nbytes: int
    checksum: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """`fault`: why there is no check of files; "" if there is one."""

    manifest_sha256: str
    manifest: Any
    files: tuple[FileCheck, ...]
    fault: str

    @property
    def is_complete(self) -> bool:
        return not self.fault and all(each.result == VERIFIED for each in self.files)

    @property
    def sentence(self) -> str:
        if self.fault:
            return self.fault
        results = [each.result for each in self.files]
        bad = len(results) - results.count(VERIFIED) - results.count(SIZE_ONLY)
        if bad:
            return f"{bad} of {len(results)} files are missing or damaged."
        if SIZE_ONLY in results:
            read = results.count(VERIFIED)
            return f"All {len(results)} files have their size; the checksums of {read} were verified."
        return f"The size and checksum of all {len(results)} files were verified."


def verify(checkpoint: Checkpoint, limit: int = MAX_BYTES) -> Verification:
    """Compares every file of a checkpoint with the manifest, and reads at most `limit` bytes for checksums."""
    if not checkpoint.is_restorable:
        why = "is discarded" if checkpoint.discarded_at else f"is {checkpoint.outcome.replace('_', ' ')}"
        return _unverified(f"{str(checkpoint).capitalize()} {why}: it has no files to verify.")
    pin(checkpoint)
    root = job_root(checkpoint.job_id)
    file = root / checkpoint.path / MANIFEST_FILE
    try:
        body = file.read_bytes()
        manifest = decode_manifest(body, str(file), settings.WEIR_MANIFEST_KEYS, signed=False)
    except (CorruptState, JobRejected, OSError) as error:
        return _unverified(f"The manifest cannot be read: {error}.")
    if (manifest.checkpoint, manifest.token) != (checkpoint.number, checkpoint.token):
        other = f"It is of checkpoint {manifest.checkpoint}, attempt {manifest.token}"
        return _unverified(f"The manifest is not that of this checkpoint. {other}.")
    files, budget = [], limit
    for segment in manifest.segments():
        files.append(_check(root / segment.path, segment, budget))
        budget -= segment.nbytes if files[-1].result == VERIFIED else 0
    return Verification(
        manifest_sha256=hashlib.sha256(body).hexdigest(), manifest=json.loads(body), files=tuple(files), fault=""
    )


def _unverified(fault: str) -> Verification:
    return Verification(manifest_sha256="", manifest=None, files=(), fault=fault)


def _check(file: Path, segment: Segment, budget: int) -> FileCheck:
    def found(result: str) -> FileCheck:
        return FileCheck(segment.path, segment.nbytes, segment.checksum, result)

    try:
        nbytes = len(segment.content) if segment.is_inline else file.stat().st_size
        if nbytes != segment.nbytes:
            return found(f"has {nbytes} bytes")
        if nbytes > budget:
            return found(SIZE_ONLY)
        algorithm, _, digest = segment.checksum.partition(":")
        if algorithm != _ALGORITHM:
            return found(f"unknown checksum algorithm {algorithm}")
        actual = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for chunk in [segment.content] if segment.is_inline else _chunks(file):
            actual.update(chunk)
    except OSError as error:
        return found(f"cannot be read: {error.strerror}")
    return found(VERIFIED if actual.hexdigest() == digest else "was altered: its checksum differs")


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk


def evidence_pack(checkpoint: Checkpoint, user: User) -> dict[str, Any]:
    """The pack as values for JSON. `checkpoint` needs its job, run, version, reviewer, assignee and pinning user."""
    checked, run = verify(checkpoint), checkpoint.run
    drills = drills_of(checkpoint.job).filter(params__checkpoint=checkpoint.pk).select_related("requested_by")
    return {
        "format": "weir-evidence-1",
        "requested_by": user.get_username(),
        "requested_at": _time(timezone.now()),
        "job": {"id": checkpoint.job_id, "name": checkpoint.job.name, "pipeline": checkpoint.job.pipeline},
        "run": {"id": run.pk, "parallelism": run.parallelism, "attempt_token": checkpoint.token},
        "version": {"id": run.version_id, "number": run.version.number},
        "checkpoint": {
            "id": checkpoint.pk, "number": checkpoint.number, "kind": checkpoint.kind, "outcome": checkpoint.outcome,
            "reason": checkpoint.reason, "detail": checkpoint.detail, "folder": checkpoint.path,
            "triggered_at": _time(checkpoint.triggered_at), "ended_at": _time(checkpoint.completed_at),
            "duration_ms": checkpoint.duration_ms, "size_bytes": checkpoint.size_bytes, "name": checkpoint.name,
            "note": checkpoint.note, "pinned_at": _time(checkpoint.pinned_at), "pinned_by": _name(checkpoint.pinned_by),
            "concerns": checkpoint.concerns or [],
        },
        "verification": {
            "is_complete": checked.is_complete, "sentence": checked.sentence,
            "manifest_sha256": checked.manifest_sha256,
            "files": [
                {"path": each.path, "bytes": each.nbytes, "checksum": each.checksum, "result": each.result}
                for each in checked.files
            ],
        },
        "review": {
            "state": checkpoint.review_state, "note": checkpoint.review_note, "reviewer": _name(checkpoint.reviewer),
            "reviewed_at": _time(checkpoint.reviewed_at), "assignee": _name(checkpoint.assignee),
            "history": [_operation(row) for row in review_history(checkpoint)[:MAX_ENTRIES]],
        },
        "drills": [_operation(row) for row in drills[:MAX_ENTRIES]],
        "manifest": checked.manifest,
    }  # fmt: skip


def _operation(row: Operation) -> dict[str, Any]:
    return {
        "id": str(row.pk), "kind": row.kind, "state": row.state, "requested_by": _name(row.requested_by),
        "created_at": _time(row.created_at), "ended_at": _time(row.ended_at), "params": row.params,
        "result": row.result, "error": row.error,
    }  # fmt: skip


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _name(user: User | None) -> str | None:
    return None if user is None else user.get_username()
