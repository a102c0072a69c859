"""The decisions of retention: which completed checkpoints are discarded, and which of their files are deleted.

Pure functions without I/O. The run stores, the job master, the simulator and the console's retention page call the
same functions, so the page shows what the job master would do.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runtime.core.job.settings import RetentionPolicy
from runtime.core.snapshot.manifest import Manifest, parse_folder
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, manifest_folder

MAX_KEPT_BY_AGE: Final = 1000  #: every deletion reads the manifests of all retained checkpoints
_HOUR_MS: Final = 3_600_000


class KeepReason(StrEnum):
    """Why retention keeps a checkpoint."""

    NEWEST = "newest"  #: one of the newest checkpoints
    YOUNG = "young"  #: triggered within the hours of the policy
    SAVEPOINT = "savepoint"  #: only a user discards a savepoint
    PINNED = "pinned"
    IN_REVIEW = "in_review"
    HELD = "held"  #: a rollback or drill under way restores it
    RESTORED = "restored"  #: the run began with it and has not completed a checkpoint of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedCheckpoint:
    """A completed checkpoint or savepoint of a job that is not discarded. `number` counts within the job."""

    number: int
    run: int
    triggered_ms: int = 0  #: time of the trigger, since the epoch
    is_savepoint: bool = False
    is_pinned: bool = False
    is_in_review: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """`discarded`: numbers in ascending order. `kept`: for every other checkpoint, all reasons that keep it."""

    discarded: tuple[int, ...]
    kept: Mapping[int, tuple[KeepReason, ...]]


def plan_retention(
    retained: Iterable[RetainedCheckpoint], policy: RetentionPolicy, *, run: int, restored: int | None
) -> RetentionPlan:
    """Which checkpoints to discard. Age keeps a checkpoint only if it is among the newest `MAX_KEPT_BY_AGE`.

    Checkpoints that are pinned, held or in review do not count towards either number, so a pin never costs a recovery
    point. No clock is read: age is the time between the triggers of a checkpoint and of the newest checkpoint.

    Args:
        retained: all checkpoints that are not discarded, in any order; savepoints may be left out.
        run: the run whose job master applies the plan.
        restored: the number of the checkpoint that `run` was restored from. It stays until `run` has completed a
            checkpoint of its own, because a restart goes back to it.
    """
    newest_first = sorted(retained, key=lambda each: -each.number)
    has_own = any(each.run == run and not each.is_savepoint for each in newest_first)
    newest_ms = max((each.triggered_ms for each in newest_first if not each.is_savepoint), default=0)
    discarded, keep_reasons, counted = [], {}, 0
    for each in newest_first:
        reasons = _exemptions(each)
        if not reasons:
            counted += 1
            if counted <= policy.keep:
                reasons.append(KeepReason.NEWEST)
            if _is_young(newest_ms - each.triggered_ms, policy) and counted <= MAX_KEPT_BY_AGE:
                reasons.append(KeepReason.YOUNG)
        if each.number == restored and not has_own:
            reasons.append(KeepReason.RESTORED)
        if reasons:
            keep_reasons[each.number] = tuple(reasons)
        else:
            discarded.append(each.number)
    return RetentionPlan(tuple(reversed(discarded)), keep_reasons)


def _is_young(age_ms: int, policy: RetentionPolicy) -> bool:
    return policy.hours is not None and age_ms < policy.hours * _HOUR_MS


def _exemptions(checkpoint: RetainedCheckpoint) -> list[KeepReason]:
    conditions = (
        (KeepReason.SAVEPOINT, checkpoint.is_savepoint),
        (KeepReason.PINNED, checkpoint.is_pinned),
        (KeepReason.IN_REVIEW, checkpoint.is_in_review),
        (KeepReason.HELD, checkpoint.is_held),
    )
    return [reason for reason, holds in conditions if holds]


def files_of(manifest: Manifest) -> set[str]:
    """Every file that a checkpoint needs, including its manifest."""
    return {segment.path for segment in manifest.files()} | {f"{manifest_folder(manifest)}/{MANIFEST_FILE}"}


def deletable_files(files: Iterable[str], retained: Iterable[Manifest], unreadable: Collection[str] = ()) -> set[str]:
    """The `files` that no manifest in `retained` names, and that no checkpoint in the folders `unreadable` may need."""
    retained_files = {path for manifest in retained for path in files_of(manifest)}
    return {path for path in files if path not in retained_files and not _is_possibly_needed(path, unreadable)}


def folder_of_file(path: str) -> str:
    """The folder of the checkpoint that wrote the file."""
    return path.split("/", 1)[0]


def _is_possibly_needed(path: str, unreadable: Collection[str]) -> bool:
    """Whether a checkpoint with an unreadable manifest may name `path`.

    No checkpoint names a file in the folder of a newer one (see `SegmentLog`). A savepoint names files in its own
    folder, and those of the last snapshot of each subtask that had finished before it.
    """
    folder = folder_of_file(path)
    if folder in unreadable:
        return True
    checkpoint = parse_folder(folder)
    checkpoints = [parse_folder(other) for other in unreadable]
    return any(checkpoint is None or other is None or checkpoint[0] <= other[0] for other in checkpoints)
