"""Checkpoints that must not complete because of union lists (FLIP-147).

A restore gives every subtask the union list entries of all subtasks. A finished subtask takes no part in later
checkpoints: its entries would be lost, or outdated. The checkpoint therefore fails while some subtasks of the operator
have finished and others have not.
"""

from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot


def partly_finished_union(manifest: Manifest) -> str | None:
    """The reason to fail the checkpoint; None if it may complete."""
    for uid, operator in manifest.operators.items():
        names = _unions(operator)
        if operator.finished is FinishedState.PARTLY and names:
            done = sum(snapshot.finished for snapshot in operator.subtasks.values())
            lists = ", ".join(names)
            return f"{uid} has union lists ({lists}), and {done} of its {operator.parallelism} subtasks have finished"
    return None


def _unions(operator: OperatorSnapshot) -> list[str]:
    return sorted({name for snapshot in operator.subtasks.values() for name in snapshot.unions})
