"""Second phase of two-phase commit: who may make output visible, and what a restore owes and disowns.

The only place that constructs a `CommitPermit`, and only from a checkpoint that has been recorded. What was prepared
for a failed checkpoint is not aborted: sources have not rewound, so it rides with the next completed one. Abort
belongs to what a restore disowns.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.core.checkpoint import CommitPermit, Manifest
from runtime.core.ids import CheckpointId, OperatorId, Token


def permit_for_recorded(manifest: Manifest, token: Token) -> CommitPermit:
    """For a manifest that has just been recorded, or is being restored, under attempt `token`."""
    assert manifest.token <= token, "a manifest of a newer attempt cannot be ours"
    return CommitPermit(job=manifest.job, token=token, checkpoint=CheckpointId(manifest.checkpoint))


def permit_from_master(job: str, token: Token, checkpoint: CheckpointId) -> CommitPermit:
    """For a slot that its own master has told of a completed checkpoint over the attempt's fenced connection."""
    return CommitPermit(job=job, token=token, checkpoint=checkpoint)


def owed(manifest: Manifest) -> Mapping[OperatorId, tuple[Any, ...]]:
    """Every committable by operator, also of finished ones: a skipped operator's commits are not skipped."""
    found: dict[OperatorId, tuple[Any, ...]] = {}
    for uid, operator in manifest.operators.items():
        pending = tuple(c for _, subtask in sorted(operator.subtasks.items()) for c in subtask.committables)
        if pending:
            found[OperatorId(uid)] = pending
    return found


def retained_committables(retained: Iterable[Manifest], uid: OperatorId) -> tuple[Any, ...]:
    """The committables of one sink that a manifest in `retained` names: cleaning after a restore spares them."""
    return tuple(committable for manifest in retained for committable in owed(manifest).get(uid, ()))
