"""The decisions of retention: which completed checkpoints are discarded, and which of their files are deleted.

Pure functions without I/O. The run stores, the job master, the simulator and the console's retention page call the
same functions, so the page shows what the job master would do.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from runtime.core.snapshot.manifest import Manifest, parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, manifest_folder


class KeepReason(StrEnum):
    """Why retention keeps a checkpoint."""

    NEWEST = "newest"  #: one of the newest checkpoints
    SAVEPOINT = "savepoint"  #: only a user discards a savepoint
    PINNED = "pinned"
    IN_REVIEW = "in_review"
    RESTORED = "restored"  #: the run began with it and has not completed a checkpoint of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedCheckpoint:
    """A completed checkpoint or savepoint of a job that is not discarded. `number` counts within the job."""

    number: int
    run: int
    is_savepoint: bool = False
    is_pinned: bool = False
    is_in_review: bool = False


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """`discarded`: numbers in ascending order. `kept`: for every other checkpoint, all reasons that keep it."""

    discarded: tuple[int, ...]
    kept: Mapping[int, tuple[KeepReason, ...]]


def plan_retention(
    retained: Iterable[RetainedCheckpoint], keep: int, *, run: int, restored: int | None
) -> RetentionPlan:
    """Which checkpoints to discard if the newest `keep` are kept.

    Pinned checkpoints and checkpoints in review do not count towards `keep`, so a pin never costs a recovery point.

    Args:
        retained: all checkpoints that are not discarded, in any order; savepoints may be left out.
        run: the run whose job master applies the plan.
        restored: the number of the checkpoint that `run` was restored from. It stays until `run` has completed a
            checkpoint of its own, because a restart goes back to it.
    """
    newest_first = sorted(retained, key=lambda each: -each.number)
    has_own = any(each.run == run and not each.is_savepoint for each in newest_first)
    discarded, kept, counted = [], {}, 0
    for each in newest_first:
        reasons = _exemptions(each)
        if not reasons:
            counted += 1
            if counted <= keep:
                reasons.append(KeepReason.NEWEST)
        if each.number == restored and not has_own:
            reasons.append(KeepReason.RESTORED)
        if reasons:
            kept[each.number] = tuple(reasons)
        else:
            discarded.append(each.number)
    return RetentionPlan(tuple(reversed(discarded)), kept)


def _exemptions(checkpoint: RetainedCheckpoint) -> list[KeepReason]:
    known = (
        (KeepReason.SAVEPOINT, checkpoint.is_savepoint),
        (KeepReason.PINNED, checkpoint.is_pinned),
        (KeepReason.IN_REVIEW, checkpoint.is_in_review),
    )
    return [reason for reason, holds in known if holds]


def files_of(manifest: Manifest) -> set[str]:
    """Every file that a checkpoint needs, including its manifest."""
    return {segment.path for segment in manifest.files()} | {f"{manifest_folder(manifest)}/{MANIFEST_FILE}"}


def deletable_files(files: Iterable[str], retained: Iterable[Manifest], unreadable: Collection[str] = ()) -> set[str]:
    """The `files` that no manifest in `retained` names, and that no checkpoint in the folders `unreadable` may need."""
    needed = {path for manifest in retained for path in files_of(manifest)}
    return {path for path in files if path not in needed and not _is_possibly_needed(path, unreadable)}


def folder_of_file(path: str) -> str:
    """The folder of the checkpoint that wrote the file."""
    return path.split("/", 1)[0]


def _is_possibly_needed(path: str, unreadable: Collection[str]) -> bool:
    """Whether a checkpoint with an unreadable manifest may name `path`.

    A savepoint names files in its own folder only. A checkpoint names no file in the folder of a newer checkpoint
    (see `SegmentLog`).
    """
    folder = folder_of_file(path)
    if folder in unreadable:
        return True
    own = parse_folder(folder)
    taken = [parse_folder(other) for other in unreadable if not other.startswith("savepoint-")]
    return any(own is None or other is None or own[0] <= other[0] for other in taken)
