"""Operators with production's state in the simulator, and the check that a checkpoint holds this state."""

import itertools
from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import numpy as np

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.restore.state_assignment import SubtaskRestore, assign_state, keyed_proofs
from runtime.core.snapshot.manifest import FinishedState, Manifest, SubtaskSnapshot
from runtime.errors import CorruptState
from runtime.ports import OperatorContext, SnapshotStore
from runtime.simulation.invariants import STATE_IN_FILES, Violation, require
from runtime.simulation.jobs import Job
from runtime.simulation.model import MAX_PARALLELISM, POSITIONS, KeyedNumbers, ModelOperator
from runtime.simulation.world import JOB, World
from runtime.state.backend import SubtaskState

MAX_CHECKED_PARALLELISM: Final = 3
TableRows = Counter[tuple[Any, ...]]  #: name of the state, key group, tombstone mark, key, values


class OperatorHost:
    """An operator of a subtask with its restored state.

    Raises:
        EnvironmentFailure: the state cannot be read.
    """

    def __init__(
        self, world: World, job: Job, graph: JobGraph, restored: SubtaskRestore, token: Token, store: SnapshotStore
    ) -> None:
        self.subtask = subtask = restored.subtask
        self.context = OperatorContext(
            job=JOB,
            uid=subtask.operator,
            index=subtask.index,
            parallelism=graph.by_uid[subtask.operator].parallelism,
            max_parallelism=MAX_PARALLELISM,
            token=token,
            state=None,  # type: ignore[arg-type]  # set below: state needs the context's key groups
            now_ms=world.now_ms,
            restored=bool(restored.snapshots),
        )
        self.state = SubtaskState(self.context.key_groups, MAX_PARALLELISM, store, compaction=world.compaction)
        self.state.restore(restored)
        self.context.state = self.state
        prefix = f"{token}-{subtask.operator}-{subtask.index}"
        self.operator: ModelOperator = job.operator(self.context, world.target, prefix)
        self.state.check_declarations()

    def table_rows(self) -> TableRows:
        """The rows of all tables."""
        rows: TableRows = Counter()
        for name, table in self.state.tables.items():
            if table.is_typed and len(table):
                columns = table.copy_all().to_batch(np.arange(len(table))).to_pydict().values()
                rows.update(zip(itertools.repeat(name), *columns, strict=False))
        return rows


class CapturedTables:
    """The tables of subtasks at their barriers, which recorded checkpoints are compared with."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, SubtaskId], TableRows] = {}

    def on_capture(self, checkpoint: int, host: OperatorHost) -> None:
        self._rows[checkpoint, host.subtask] = host.table_rows()

    def check(self, world: World, job: Job, manifest: Manifest) -> None:
        """Compares a recorded checkpoint, restored at some parallelism, with the tables at its barrier."""
        number = manifest.checkpoint
        parallelism = 1 + number % MAX_CHECKED_PARALLELISM
        graph = job.graph({step.lane: parallelism for step in job.steps})
        assigned = assign_state(manifest, graph)
        for uid, operator in manifest.operators.items():
            subtasks = [SubtaskId(OperatorId(uid), index) for index in operator.subtasks]
            took_part = all((number, subtask) in self._rows for subtask in subtasks)
            if operator.finished is FinishedState.FINISHED or not took_part:
                continue  # the operator is skipped at a restore, or the snapshot of a finished subtask is older
            live, stored = TableRows(), TableRows()
            for subtask in subtasks:
                live.update(self._rows[number, subtask])
            for index in range(parallelism):
                restored = assigned[SubtaskId(OperatorId(uid), index)]
                try:
                    host = OperatorHost(world, job, graph, restored, Token(manifest.token), world.storage.archive)
                except CorruptState as error:
                    raise Violation(STATE_IN_FILES, str(error)) from error
                stored.update(host.table_rows())
            detail = f"{number}: {uid} at {parallelism} lacks {_sample(live - stored)}, has {_sample(stored - live)}"
            require(live == stored, "a-checkpoint-holds-the-state-at-its-barrier", detail)


def _sample(rows: TableRows) -> str:
    return f"{rows.total()} rows, such as {list(rows)[:2]}"


def source_positions(store: SnapshotStore, snapshots: Collection[SubtaskSnapshot]) -> dict[str, int]:
    """The position in each split in the snapshots of a source. Raises CorruptState."""
    groups = range(MAX_PARALLELISM)
    state = SubtaskState(groups, MAX_PARALLELISM, store)
    proofs = keyed_proofs(snapshots, groups)
    state.restore(SubtaskRestore(subtask=SubtaskId(OperatorId(""), 0), snapshots=tuple(snapshots), proofs=proofs))
    listed = [entry for snapshot in snapshots for entry in snapshot.lists.get(POSITIONS, ())]
    return dict(KeyedNumbers(state.object_table(POSITIONS)).items()) | dict(listed)
