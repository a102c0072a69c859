"""Completion of a checkpoint: its manifest is made durable, then recorded under the attempt's token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.core.attempt.result import Superseded
from runtime.core.checkpoint.acknowledgements import PHASES
from runtime.core.job.ids import SubtaskId
from runtime.core.restore.mapping import has_state
from runtime.core.snapshot.manifest import Manifest, SnapshotTimings
from runtime.errors import EnvironmentFailure
from runtime.io.manifests import write_manifest
from runtime.io.savepoints import make_self_contained
from runtime.ports import SnapshotStore
from runtime.run_store import CompletedCheckpoint, RunStore

Timings = tuple[tuple[SubtaskId, SnapshotTimings], ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The checkpoint exists."""


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """The checkpoint is known not to be recorded."""

    detail: str


def finalize_checkpoint(
    store: SnapshotStore, records: RunStore, manifest: Manifest, timings: Timings, now_ms: Callable[[], int]
) -> Recorded | NotRecorded | Superseded:
    """Makes the manifest durable, then records the checkpoint. Its duration includes the time that the manifest takes.

    Raises:
        EnvironmentFailure: it is unknown whether the checkpoint was recorded. A retry is safe: recording is idempotent.
    """
    copied_bytes = 0
    try:
        if manifest.kind.is_savepoint:
            manifest, copied_bytes = make_self_contained(store, manifest)
        folder, nbytes = write_manifest(store, manifest)
    except (OSError, EnvironmentFailure) as error:
        return NotRecorded(f"{type(error).__name__}: {error}")
    record = CompletedCheckpoint(
        manifest=manifest,
        folder=folder,
        size_bytes=nbytes + sum(segment.nbytes for segment in manifest.files()),
        written_bytes=nbytes + copied_bytes + sum(t.written_bytes for _, t in timings),
        at=now_ms(),
        operators=_summary(manifest, timings),
    )
    return Recorded() if records.record_checkpoint(record) else Superseded()


def _summary(manifest: Manifest, timings: Timings) -> list[dict[str, Any]]:
    """Statistics per operator for the console: the maximum of each phase, and all phases of the slowest subtask."""
    rows = []
    for uid, operator in manifest.operators.items():
        times = {subtask.index: t for subtask, t in timings if subtask.operator == uid}
        longest = {
            f"max_{phase}_ms": max((_rounded_ms(t, phase) for t in times.values()), default=0.0) for phase in PHASES
        }
        slowest = max(times, key=lambda index: sum(_rounded_ms(times[index], phase) for phase in PHASES), default=None)
        rows.append(
            {
                "uid": uid,
                "finished": str(operator.finished),
                "subtasks": operator.parallelism,
                "has_state": has_state(operator),
                "state_bytes": sum(s.nbytes for t in operator.subtasks.values() for s in t.segments()),
                "written_bytes": sum(t.written_bytes for t in times.values()),
                **longest,
                "slowest": None if slowest is None else _phases_of(slowest, times[slowest]),
            }
        )
    return rows


def _phases_of(index: int, timings: SnapshotTimings) -> dict[str, Any]:
    return {"subtask": index, **{f"{phase}_ms": _rounded_ms(timings, phase) for phase in PHASES}}


def _rounded_ms(timings: SnapshotTimings, phase: str) -> float:
    took_ms: float = getattr(timings, f"{phase}_ms")
    return round(took_ms, 1)
