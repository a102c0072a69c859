"""The check that a recorded checkpoint holds the state at its barriers, and the positions that a manifest holds."""

import itertools
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import numpy as np

from runtime.connectors.sources.hybrid import HISTORY, LIVE
from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.restore.state_assignment import SubtaskRestore, assign_state, keyed_proofs
from runtime.core.snapshot.manifest import FinishedState, Manifest, SubtaskSnapshot
from runtime.errors import CorruptState
from runtime.ports import OperatorContext, SnapshotStore
from runtime.simulation.invariants import STATE_IN_FILES, Violation, require
from runtime.simulation.model import MAX_PARALLELISM, POSITIONS, KeyedNumbers
from runtime.state.backend import SubtaskState
from runtime.task.deployment import Deployment

MAX_CHECKED_PARALLELISM: Final = 3
TableRows = Counter[tuple[Any, ...]]  #: name of the state, key group, tombstone mark, key, values


def table_rows(context: OperatorContext) -> TableRows:
    """The rows of all tables of an operator. A restore drops those of a history that is over."""
    state: Any = context.state
    rows: TableRows = Counter()
    is_live = any(name.startswith(f"{LIVE}.") for name in state.tables)
    for name, table in state.tables.items():
        if table.is_typed and len(table) and not (is_live and name.startswith(f"{HISTORY}.")):
            columns = table.copy_all().to_batch(np.arange(len(table))).to_pydict().values()
            rows.update(zip(itertools.repeat(name), *columns, strict=False))
    return rows


class CapturedTables:
    """The tables of subtasks at their barriers, which recorded checkpoints are compared with."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, SubtaskId], TableRows] = {}

    def on_snapshot(self, context: OperatorContext, checkpoint: int) -> None:
        self._rows[checkpoint, SubtaskId(OperatorId(context.uid), context.index)] = table_rows(context)

    def check(self, deployment: Deployment, manifest: Manifest) -> None:
        """Compares a checkpoint, restored by `deployment`, with the tables at its barrier."""
        number, graph = manifest.checkpoint, deployment.job.graph
        assigned = assign_state(manifest, graph)
        for uid, operator in manifest.operators.items():
            subtasks = [SubtaskId(OperatorId(uid), index) for index in operator.subtasks]
            took_part = all((number, subtask) in self._rows for subtask in subtasks)
            if operator.finished is FinishedState.FINISHED or not took_part:
                continue  # the operator is skipped at a restore, or the snapshot of a finished subtask is older
            live, stored = TableRows(), TableRows()
            for subtask in subtasks:
                live.update(self._rows[number, subtask])
            for index in range(graph.by_uid[OperatorId(uid)].parallelism):
                stored.update(_restored_rows(deployment, assigned[SubtaskId(OperatorId(uid), index)]))
            detail = f"{number}: {uid} lacks {_sample(live - stored)}, has {_sample(stored - live)}"
            require(live == stored, "a-checkpoint-holds-the-state-at-its-barrier", detail)


def _restored_rows(deployment: Deployment, restored: SubtaskRestore) -> TableRows:
    try:
        context = deployment.context_of(restored)
        deployment.create_operator(restored.subtask).open(context)
    except CorruptState as error:
        raise Violation(STATE_IN_FILES, str(error)) from error
    return table_rows(context)


def _sample(rows: TableRows) -> str:
    return f"{rows.total()} rows, such as {list(rows)[:2]}"


def source_positions(store: SnapshotStore, snapshots: Collection[SubtaskSnapshot]) -> dict[str, int]:
    """The position in each split in the snapshots of a source. Raises CorruptState."""
    groups = range(MAX_PARALLELISM)
    state = SubtaskState(groups, MAX_PARALLELISM, store)
    proofs = keyed_proofs(snapshots, groups)
    state.restore(SubtaskRestore(subtask=SubtaskId(OperatorId(""), 0), snapshots=tuple(snapshots), proofs=proofs))
    positions: dict[str, int] = {}
    for name in (POSITIONS, f"{HISTORY}.{POSITIONS}", f"{LIVE}.{POSITIONS}"):
        positions |= dict(entry for snapshot in snapshots for entry in snapshot.lists.get(name, ()))
        positions |= KeyedNumbers(state.object_table(name)).items()
    return positions
