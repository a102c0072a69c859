"""The instant in which a checkpoint comes to exist: its manifest made durable, then recorded under the token."""

from typing import Any

from runtime.core.checkpoint import Manifest, SnapshotTimings
from runtime.core.ids import SubtaskId
from runtime.core.mapping import has_state
from runtime.errors import EnvironmentFailure
from runtime.io.manifests import write_manifest
from runtime.ports import SnapshotStore
from runtime.records import Completed, RunRecords

Timings = tuple[tuple[SubtaskId, SnapshotTimings], ...]


def complete(store: SnapshotStore, records: RunRecords, manifest: Manifest, timings: Timings, at: int) -> bool | str:
    """Returns why the manifest could not be written, or whether it was recorded (False: superseded).

    A record of unknown outcome raises EnvironmentFailure and is to be tried again: recording is idempotent.
    """
    try:
        folder, nbytes = write_manifest(store, manifest)
    except (OSError, EnvironmentFailure) as error:
        return f"{type(error).__name__}: {error}"
    record = Completed(
        manifest=manifest,
        folder=folder,
        size_bytes=nbytes + sum(segment.nbytes for segment in manifest.segments()),
        written_bytes=nbytes + sum(t.written_bytes for _, t in timings),
        at=at,
        operators=_summary(manifest, timings),
    )
    return records.record_completed(record)


def _summary(manifest: Manifest, timings: Timings) -> list[dict[str, Any]]:
    """Per operator, for people."""
    rows = []
    for uid, operator in manifest.operators.items():
        own = [t for subtask, t in timings if subtask.operator == uid]
        rows.append(
            {
                "uid": uid,
                "finished": str(operator.finished),
                "subtasks": operator.parallelism,
                "has_state": has_state(operator),
                "state_bytes": sum(s.nbytes for t in operator.subtasks.values() for s in t.segments()),
                "max_alignment_ms": max((t.alignment_ms for t in own), default=0.0),
                "max_sync_ms": max((t.sync_ms for t in own), default=0.0),
                "max_async_ms": max((t.async_ms for t in own), default=0.0),
            }
        )
    return rows
