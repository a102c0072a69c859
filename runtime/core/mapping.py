"""May a manifest be restored into a graph, and what becomes of each operator: a value that exists before the restore.

It decides by uid. It does not know files, and deals nothing (`recovery` does).
"""

from runtime.core.checkpoint import FORMAT_VERSION, Manifest, OperatorSnapshot
from runtime.core.graph import JobGraph
from runtime.errors import JobRejected


def check_restorable(manifest: Manifest, graph: JobGraph) -> None:
    """Refuses a restore that would lose or misplace state, before anything starts.

    Raises:
        JobRejected: naming the operator or field at fault.
    """
    if manifest.format > FORMAT_VERSION:
        detail = f"the checkpoint has format {manifest.format}, this version reads up to {FORMAT_VERSION}"
        raise JobRejected("newer-format", "checkpoint", detail)
    if manifest.max_parallelism != graph.max_parallelism:
        detail = f"the checkpoint has {manifest.max_parallelism} key groups, the job {graph.max_parallelism}"
        raise JobRejected("max-parallelism-changed", "max_parallelism", detail)
    for uid, snapshot in manifest.operators.items():
        if uid not in graph.by_uid and has_state(snapshot):
            raise JobRejected("unmapped-state", uid, "the checkpoint holds state for an operator that the job lacks")
    _check_finished_set(manifest, graph)


def _check_finished_set(manifest: Manifest, graph: JobGraph) -> None:
    finished = set(manifest.finished_operators())
    for operator in graph.operators:
        for before in graph.predecessors(operator.uid):
            if operator.uid in finished and before not in finished:
                detail = f"it stands before {operator.uid!r}, which the checkpoint holds as finished"
                raise JobRejected("operator-before-finished", str(before), detail)


def has_state(operator: OperatorSnapshot) -> bool:
    """Whether dropping the operator would lose something."""
    return any(s.keyed or s.broadcast or s.lists or s.committables for s in operator.subtasks.values())
