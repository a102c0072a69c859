"""Fallback for a checkpoint that cannot be read: the error report, and the earlier checkpoint that can be restored.

The job's policy decides whether to fall back, since output committed after the earlier checkpoint is repeated.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.core.snapshot.manifest import Manifest
from runtime.errors import CorruptState, JobRejected
from runtime.ports import SnapshotStore
from runtime.run_store import RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFallback:
    """File of the checkpoint to restore that is missing or altered, and the possible fallback."""

    file: str
    operator: str  #: owner of the state; "" for a manifest
    detail: str
    checkpoint: int | None  #: None if its folder's name has no number
    previous: int | None  #: newest completed checkpoint before it that can be restored
    #: completed checkpoints after `previous`; their output would be committed again
    repeated_checkpoints: tuple[int, ...]
    unusable_folders: tuple[str, ...]  #: folders of checkpoints that cannot be restored

    @property
    def fallback_hint(self) -> str:
        if self.previous is None:
            return "No completed checkpoint before it can be restored."
        text = f"Checkpoint {self.previous}, completed before it, can be restored instead"
        return (
            f"{text}; the output of {_join_numbers(self.repeated_checkpoints)} would be repeated."
            if self.repeated_checkpoints
            else f"{text}."
        )

    @property
    def failure(self) -> dict[str, Any]:
        """Failure of a run that ends here, and detail of an attempt otherwise."""
        return {
            "code": "corrupt-state",
            "message": f"{self.detail}. {self.fallback_hint}",
            "operator": self.operator,
            "file": self.file,
            "checkpoint": self.checkpoint,
            "previous": self.previous,
            "repeated": list(self.repeated_checkpoints),
        }

    @property
    def fallback_reason(self) -> str:
        """Recorded reason of the attempt that restores the previous checkpoint."""
        return (
            f"{self.detail}. By policy checkpoint {self.previous} is restored instead, which repeats the output of "
            + (_join_numbers(self.repeated_checkpoints) or "none")
        )


def find_fallback(
    file: str,
    operator: str,
    detail: str,
    passed_over: Sequence[str],
    records: RunStore,
    store: SnapshotStore,
    read: Callable[[str], Manifest],
) -> RestoreFallback:
    """Finds a restorable checkpoint other than the unusable checkpoints in folders `passed_over`.

    `read` reads the manifest in a folder, and raises JobRejected if the job cannot be restored from it.
    """
    unusable = list(passed_over)
    previous = None
    while previous is None and (folder := records.restore_point(unusable)) is not None:
        previous = _complete_manifest(folder, file, store, read)
        if previous is None:
            unusable.append(folder)
    return RestoreFallback(
        file=file,
        operator=operator,
        detail=detail,
        checkpoint=checkpoint_number(passed_over[-1]) if passed_over else None,
        previous=None if previous is None else previous.checkpoint,
        repeated_checkpoints=() if previous is None else tuple(records.checkpoints_since(previous.checkpoint)),
        unusable_folders=tuple(unusable),
    )


def _complete_manifest(
    folder: str, damaged: str, store: SnapshotStore, read: Callable[[str], Manifest]
) -> Manifest | None:
    """The manifest, if it is readable and all its files exist; else None.

    Checkpoints share files, so the damaged file may belong to it too. The restore verifies the other files.
    """
    try:
        manifest = read(folder)
    except (CorruptState, JobRejected):
        return None
    existing = set(store.list("")) - {damaged}
    return manifest if all(segment.path in existing for segment in manifest.segments()) else None


def checkpoint_number(folder: str) -> int | None:
    """Checkpoint number in the name of a folder (`folder_of`), or None."""
    parts = folder.rsplit("/", 1)[-1].split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else None


def _join_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(f"checkpoint {number}" for number in numbers)
