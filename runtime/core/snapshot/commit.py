"""Second phase of two-phase commit: permits, and the pending committables of a checkpoint.

This module alone constructs a `CommitPermit`, and only for a recorded checkpoint. Committables of a failed checkpoint
are not aborted: sources have not rewound, so the next completed checkpoint commits them. Only a restore aborts
committables: those of restored subtasks that are missing in the checkpoint.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from runtime.core.job.ids import CheckpointId, OperatorId, Token
from runtime.core.snapshot.manifest import Manifest, SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """The right to make output visible. Constructed by `snapshot.commit` alone, from a recorded checkpoint."""

    job: str
    token: Token
    checkpoint: CheckpointId
    taken_by: Token  #: the attempt that took the checkpoint: at a restore an older one


def permit_for_manifest(manifest: Manifest, token: Token) -> CommitPermit:
    """The permit for a manifest that attempt `token` has just recorded or is restoring."""
    assert manifest.token <= token, "the manifest belongs to a newer attempt"
    return CommitPermit(
        job=manifest.job,
        token=token,
        checkpoint=CheckpointId(manifest.checkpoint),
        taken_by=Token(manifest.token),
    )


def permit_from_master(job: str, token: Token, checkpoint: CheckpointId) -> CommitPermit:
    """The permit of a slot whose master has announced the checkpoint over the attempt's fenced connection."""
    return CommitPermit(job=job, token=token, checkpoint=checkpoint, taken_by=token)


def pending_committables(manifest: Manifest) -> Mapping[OperatorId, tuple[Any, ...]]:
    """The pending committables by operator. Finished operators are included: a restore commits their output too."""
    by_operator: dict[OperatorId, tuple[Any, ...]] = {}
    for uid, operator in manifest.operators.items():
        pending = tuple(c for _, subtask in sorted(operator.subtasks.items()) for c in subtask.committables)
        if pending:
            by_operator[OperatorId(uid)] = pending
    return by_operator


def retained_output(retained: Iterable[Manifest], uid: OperatorId, list_states: Sequence[str] = ()) -> tuple[Any, ...]:
    """The uncommitted output of a sink that manifests in `retained` name. The clean-up after a restore keeps it.

    Args:
        list_states: names of the list states with the output in progress of the sink's writers.
    """
    output: list[Any] = []
    for manifest in retained:
        output += pending_committables(manifest).get(uid, ())
        output += output_in_progress(manifest, uid, list_states)
    return tuple(output)


def output_in_progress(manifest: Manifest, uid: OperatorId, list_states: Sequence[str]) -> tuple[Any, ...]:
    """The entries of list states of a sink, of all subtasks."""
    operator = manifest.operators.get(uid)
    subtasks = () if operator is None else (subtask for _, subtask in sorted(operator.subtasks.items()))
    return tuple(entry for subtask in subtasks for name in list_states for entry in subtask.lists.get(name, ()))


def is_same_savepoint(savepoint: Manifest, other: Manifest) -> bool:
    """Whether two copies are of the same savepoint. More output of one copy may be known to be committed."""
    return pending_only(savepoint) == pending_only(other)


def pending_only(savepoint: Manifest, later: Manifest | None = None) -> Manifest:
    """The savepoint without committables that are known to be committed, so that no restore commits them again.

    Each snapshot of a sink subtask names its prepared committables until they are committed. A committable that is
    missing in `later` has therefore been committed since the savepoint. This conclusion holds within an attempt only: a
    restore may have aborted committables of an older attempt, which stay pending for a restore of their own savepoint.

    Args:
        later: a checkpoint; ignored unless it is newer than `savepoint` and of the same attempt. None: all committables
            are committed, as at the end of a run that ended with this savepoint.
    """
    if later is not None and (later.token != savepoint.token or later.checkpoint <= savepoint.checkpoint):
        return savepoint
    by_operator = {} if later is None else pending_committables(later)

    def prune(uid: str, subtask: SubtaskSnapshot) -> SubtaskSnapshot:
        still = by_operator.get(OperatorId(uid), ())
        return replace(subtask, committables=tuple(c for c in subtask.committables if c in still))

    operators = {
        uid: replace(operator, subtasks={index: prune(uid, subtask) for index, subtask in operator.subtasks.items()})
        for uid, operator in savepoint.operators.items()
    }
    return replace(savepoint, operators=operators)
