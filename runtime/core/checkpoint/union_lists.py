"""When a checkpoint must not complete because of union lists.

Every subtask of an operator with a union list is given the entries of all. One that has finished takes no part in
later checkpoints, so what it alone held would be lost; and what it held when it finished may be outdated. So such a
checkpoint is given up until all subtasks of the operator have finished (FLIP-147).
"""

from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot


def partly_finished_union(manifest: Manifest) -> str | None:
    """Why the checkpoint must be given up; None when it may complete."""
    for uid, operator in manifest.operators.items():
        names = _unions(operator)
        if operator.finished is FinishedState.PARTLY and names:
            done = sum(snapshot.finished for snapshot in operator.subtasks.values())
            lists = ", ".join(names)
            return f"{uid} has union lists ({lists}), and {done} of its {operator.parallelism} subtasks have finished"
    return None


def _unions(operator: OperatorSnapshot) -> list[str]:
    return sorted({name for snapshot in operator.subtasks.values() for name in snapshot.unions})
