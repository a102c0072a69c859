"""Second phase of two-phase commit: who may make output visible, and what a restore owes and disowns.

The only place that constructs a `CommitPermit`, and only from a checkpoint that has been recorded. What was prepared
for a failed checkpoint is not aborted: sources have not rewound, so it rides with the next completed one. Abort
belongs to what a restore disowns.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from runtime.core.checkpoint import CommitPermit, Manifest, SubtaskSnapshot
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


def without_committed(savepoint: Manifest, later: Manifest | None = None) -> Manifest:
    """The savepoint without what is known to be committed, so that it owes nothing of that wherever it is restored.

    A sink subtask names what it has prepared in each of its snapshots until it has committed it. So a committable that
    `later`, a checkpoint of the same attempt, does not name has been committed in between. This holds for one attempt
    only: what a savepoint of an older attempt prepared may be disowned, and is pending for its own restore.

    Args:
        later: None means that all of it is committed, as at the end of a run that has ended by this savepoint.
    """
    if later is not None and (later.token != savepoint.token or later.checkpoint <= savepoint.checkpoint):
        return savepoint
    named = {} if later is None else owed(later)

    def left(uid: str, subtask: SubtaskSnapshot) -> SubtaskSnapshot:
        still = named.get(OperatorId(uid), ())
        return replace(subtask, committables=tuple(one for one in subtask.committables if one in still))

    operators = {
        uid: replace(operator, subtasks={index: left(uid, one) for index, one in operator.subtasks.items()})
        for uid, operator in savepoint.operators.items()
    }
    return replace(savepoint, operators=operators)
