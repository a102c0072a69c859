"""Remedies of a failed run by failure code; the job page suggests them.

A code that is not in the table belongs to `JobRejected`: the author's graph, parameters, code or data. A plain restore
would fail again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from console.checkpoints.models import Checkpoint
from console.jobs.models import JobVersion, Run, VersionState
from console.operations.models import OperationKind


class Remedy(StrEnum):
    """The first step after a failure."""

    AGAIN = "again"  #: the cause may be gone: continue from the newest checkpoint
    OUTSIDE = "outside"  #: correct the fault that the message names, outside the job
    CODE = "code"  #: correct the installed code, which is no part of a version, or the input
    VERSION = "version"  #: create a new version, or correct the input
    CHECKPOINT = "checkpoint"  #: restore another checkpoint
    EMPTY = "empty"  #: start from empty state


_CODES: Mapping[Remedy, tuple[str, ...]] = {
    Remedy.AGAIN: (
        "attempt-failed", "batch-failed", "commit-failed", "master-died", "spark-unavailable", "splits-missing",
        "stage-died", "unknown",
    ),
    Remedy.OUTSIDE: (
        "bad-environment", "bad-manifest-key", "broken-pipeline", "folder-not-shared", "missing-file",
        "missing-package", "missing-table", "no-privilege", "no-slots", "path-not-allowed", "unknown-pipeline",
    ),
    Remedy.CODE: ("final",),
    Remedy.CHECKPOINT: (
        "corrupt-state", "other-format", "not-a-savepoint", "not-signed", "other-job", "savepoint-clash",
    ),
    Remedy.EMPTY: (
        "epochs-out-of-step", "epochs-released", "input-changed", "input-replaced", "occupied", "other-epochs",
    ),
}  # fmt: skip
REMEDIES: Mapping[str, Remedy] = MappingProxyType({code: remedy for remedy, codes in _CODES.items() for code in codes})


def remedy_of(code: str) -> Remedy:
    return REMEDIES.get(code, Remedy.VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The suggested steps after a failure.

    Args:
        checkpoint: the checkpoint to restore once the fault is corrected; None: start from empty state.
        version: a newer version that is ready, if a new version is the remedy.
    """

    remedy: Remedy
    checkpoint: Checkpoint | None
    version: JobVersion | None

    @property
    def act(self) -> OperationKind | None:
        """The operation to perform now. None if other code or a new version comes first."""
        if self.remedy is Remedy.CODE or (self.remedy is Remedy.VERSION and self.version is None):
            return None
        return OperationKind.START if self.checkpoint is None else OperationKind.RESTORE


def suggest_remedy(run: Run, code: str, newest: Checkpoint | None, newest_version: JobVersion | None) -> Suggestion:
    """The remedy for `run`, which failed with `code`. `newest`: the newest checkpoint that the job could continue from.

    A run that was refused before its first checkpoint is repeated as it was requested: a start stays a start.
    """
    remedy = remedy_of(code)
    was_restored = run.restore_checkpoint_id is not None or bool(run.restore_path)
    goes_on = newest is not None and (newest.run_id == run.pk or was_restored)
    may_restore = not run.version.is_batch and remedy is not Remedy.EMPTY
    repeats = remedy in (Remedy.OUTSIDE, Remedy.CODE, Remedy.VERSION)
    return Suggestion(
        remedy=remedy,
        checkpoint=newest if may_restore and (goes_on or not repeats) else None,
        version=newest_version if remedy is Remedy.VERSION and _is_newer(newest_version, run.version) else None,
    )


def _is_newer(newest: JobVersion | None, than: JobVersion) -> bool:
    return newest is not None and newest.state == VersionState.READY and newest.number > than.number
