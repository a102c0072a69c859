"""The evidence pack of a checkpoint: its manifest, the last check of its files, its review and its restore drills."""

from datetime import datetime
from functools import partial
from typing import Any, Final

from django.utils import timezone

from console.accounts.models import User
from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.timed_reads import read_in_time
from console.operations.kinds.snapshot.drill import drills_of
from console.operations.kinds.snapshot.review import review_history
from console.operations.kinds.snapshot.verify import verification_under_way
from console.operations.models import Operation, Verification
from console.operations.restores.verification import (
    StoredManifest,
    is_complete,
    read_manifest,
    summary,
)
from console.pages import evidence_seal

MAX_ENTRIES: Final = 200  #: of the review and of drills


def evidence_pack(checkpoint: Checkpoint, user: User) -> dict[str, Any]:
    """The pack as values for JSON, with its seal.

    `checkpoint` needs its job, run, version, reviewer, assignee and pinning user.
    """
    pack = _pack(checkpoint, user)
    return {**pack, evidence_seal.MEMBER: evidence_seal.seal(pack)}


def _pack(checkpoint: Checkpoint, user: User) -> dict[str, Any]:
    stored, run = _stored_manifest(checkpoint), checkpoint.run
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
        "manifest_sha256": stored.sha256 or None,
        "signature": stored.signature or None,
        "verification": _verification(checkpoint, stored),
        "review": {
            "state": checkpoint.review_state, "note": checkpoint.review_note, "reviewer": _name(checkpoint.reviewer),
            "reviewed_at": _time(checkpoint.reviewed_at), "assignee": _name(checkpoint.assignee),
            "history": [_operation(row) for row in review_history(checkpoint)[:MAX_ENTRIES]],
        },
        "drills": [_operation(row) for row in drills[:MAX_ENTRIES]],
        "manifest": stored.content,
    }  # fmt: skip


def _stored_manifest(checkpoint: Checkpoint) -> StoredManifest:
    try:
        return read_in_time(("evidence", checkpoint.pk), partial(read_manifest, checkpoint))
    except Refused as refused:
        return StoredManifest(fault=refused.detail)


def _verification(checkpoint: Checkpoint, stored: StoredManifest) -> dict[str, Any]:
    """The last check. It is not complete if the manifest has changed since."""
    last = Verification.objects.filter(checkpoint=checkpoint).select_related("operation__requested_by").first()
    under_way = verification_under_way(checkpoint)
    files, states = (last.files, last.states) if last else ([], [])
    results, state_results = ([result for *_, result in rows] for rows in (files, states))
    is_current = last is not None and last.manifest_sha256 == stored.sha256
    if stored.fault or last is None:
        sentence = stored.fault or "The checkpoint has not been checked."
    else:
        sentence = summary(results, state_results)
        sentence = sentence if is_current else f"The manifest has changed since the check. {sentence}"
    return {
        "is_complete": is_current and is_complete([*results, *state_results]), "sentence": sentence,
        "is_under_way": under_way is not None,
        "requested_by": _name(last.operation.requested_by) if last else None,
        "checked_at": _time(last.operation.ended_at) if last else None,
        "manifest_sha256": last.manifest_sha256 if last else None,
        "files": [
            {"path": path, "bytes": nbytes, "checksum": checksum, "result": result}
            for path, nbytes, checksum, result in files
        ],
        "states": [
            {"operator": operator, "state": state, "entries": entries, "result": result}
            for operator, state, entries, result in states
        ],
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
