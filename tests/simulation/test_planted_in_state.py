"""Known bugs in the life of operator state, planted one at a time: captures, merges of files, restores, key groups.

The output alone must show each: the proofs of state are switched off where they would refuse first. A table of the
first seed that finds each bug: `pytest -m slow -s tests/simulation/test_planted_in_state.py`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runtime.core.restore import state_assignment
from runtime.core.snapshot.manifest import Segment, SegmentBlock, SubtaskSnapshot
from runtime.errors import EnvironmentFailure
from runtime.operators.group_watermarks import GroupWatermarks
from runtime.operators.joins.stored_rows import StoredRows
from runtime.ports import SnapshotStore
from runtime.simulation import simulation
from runtime.simulation.invariants import STATE_IN_FILES
from runtime.simulation.model import MAX_PARALLELISM
from runtime.simulation.simulation import SeedViolation, SimulationPlan
from runtime.state import backend, proofs
from runtime.state.backend import StateCapture, SubtaskState
from runtime.state.files import segment_log, segments
from runtime.state.files.segment_log import PendingSegment, SegmentLog
from runtime.state.index.factorise import factorise
from runtime.state.index.key_index import RowIds
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import ObjectRows, ObjectTable
from runtime.state.primary_key import PrimaryKey
from runtime.state.rows import TableRows
from tests.simulation.planted_bugs import Plant, World, first_violation, rescaling

MAX_SEEDS = 500
SEEDS_AFTER_A_CHANGE = 30
PROOF_VIOLATIONS = (STATE_IN_FILES, "a-restore-finds-every-file")


def disable_proofs(patch: pytest.MonkeyPatch) -> None:
    for module in (backend, segment_log, proofs):
        patch.setattr(module, "check_proof", lambda *_: None)
    patch.setattr(backend, "complete_proof", lambda state, proof, count: proof)


def merge_by_key_columns_alone(patch: pytest.MonkeyPatch) -> None:
    """State by key group has one key in all key groups: the rows of a single group remain."""

    def newest_rows(key: PrimaryKey, batch: pa.RecordBatch) -> RowIds:
        distinct = factorise(key.keys(batch.columns))
        newest = np.empty(len(distinct), dtype=np.intp)
        newest[distinct.key_numbers] = np.arange(batch.num_rows)
        newest.sort()
        return newest

    patch.setattr(PrimaryKey, "newest_rows", newest_rows)


def capture_no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """Deleted rows come back from the base."""
    capture_changes = KeyedTable.capture_changes

    def typed_rows(table: KeyedTable) -> list[TableRows]:
        table._tombstones = []
        return capture_changes(table)

    def object_rows(table: ObjectTable) -> list[ObjectRows]:
        changed = {entry: value for entry, value in table._take_changes()._by_entry.items() if value is not None}
        return [ObjectRows(changed)] if changed else []

    patch.setattr(KeyedTable, "capture_changes", typed_rows)
    patch.setattr(ObjectTable, "capture_changes", object_rows)


def merge_without_the_newest_file(patch: pytest.MonkeyPatch) -> None:
    merged_segment = SegmentLog._merged_segment

    def merged(log: SegmentLog, files: Sequence[Segment], *arguments: Any) -> PendingSegment:
        return merged_segment(log, files[:-1] if len(files) > 1 else files, *arguments)

    patch.setattr(SegmentLog, "_merged_segment", merged)


def restore_deltas_in_reverse_order(patch: pytest.MonkeyPatch) -> None:
    """The oldest rows win."""
    write_segments = backend._write_segments

    def written(*arguments: Any) -> tuple[dict[str, tuple[Segment, ...]], int]:
        stored, nbytes = write_segments(*arguments)
        return {name: files[::-1] for name, files in stored.items()}, nbytes

    patch.setattr(backend, "_write_segments", written)


def mark_rows_as_captured_when_the_write_ends(patch: pytest.MonkeyPatch) -> None:
    """No delta holds the rows that changed between the barrier and the end of the write."""
    capture, write = SubtaskState.capture, StateCapture.write
    states: list[tuple[StateCapture, SubtaskState]] = []

    def captured(state: SubtaskState, full: bool) -> StateCapture:
        states.append((made := capture(state, full), state))
        return made

    def written(made: StateCapture, store: SnapshotStore, prefix: str) -> tuple[SubtaskSnapshot, int]:
        stored = write(made, store, prefix)
        for state in [state for other, state in states if other is made]:
            _forget_changes(state)
        return stored

    patch.setattr(SubtaskState, "capture", captured)
    patch.setattr(StateCapture, "write", written)


def forget_the_rows_of_a_failed_write(patch: pytest.MonkeyPatch) -> None:
    """They are marked as captured, and no later snapshot names them."""
    write_new = PendingSegment._write_new

    def written(pending: PendingSegment, store: SnapshotStore, path: str) -> tuple[Segment, ...]:
        try:
            return write_new(pending, store, path)
        except EnvironmentFailure:
            pending.segments = ()
            raise

    patch.setattr(PendingSegment, "_write_new", written)


def mark_rows_as_captured_by_a_savepoint(patch: pytest.MonkeyPatch) -> None:
    """Periodic checkpoints never name the files of a savepoint."""
    capture = SubtaskState.capture

    def captured(state: SubtaskState, full: bool) -> StateCapture:
        made = capture(state, full)
        if full:
            _forget_changes(state)
        return made

    patch.setattr(SubtaskState, "capture", captured)


def restore_the_first_snapshot_alone(patch: pytest.MonkeyPatch) -> None:
    """A subtask whose key groups several old subtasks had."""
    overlapping = state_assignment._overlapping
    patch.setattr(state_assignment, "_overlapping", lambda *arguments: overlapping(*arguments)[:1])


def read_one_block_too_few(patch: pytest.MonkeyPatch) -> None:
    """A block that begins with the last key group of a subtask. Each key group is a block of its own."""
    patch.setattr(segments, "MIN_BLOCK_BYTES", 1)

    def blocks(all_blocks: tuple[SegmentBlock, ...], groups: range) -> tuple[SegmentBlock, ...]:
        inside = (b for b in all_blocks if b.first_group < groups.stop - 1 and groups.start <= b.last_group)
        return tuple(inside) or all_blocks[:1]

    patch.setattr(segments, "_blocks_with_groups", blocks)


def keep_the_rows_of_other_subtasks_in_a_merge(patch: pytest.MonkeyPatch) -> None:
    """After a rescale, a merge of restored files keeps all key groups; after the next, older rows come back."""
    merged_segment = SegmentLog._merged_segment

    def merged(log: SegmentLog, *arguments: Any) -> PendingSegment:
        groups, log._groups = log._groups, range(MAX_PARALLELISM)
        try:
            return merged_segment(log, *arguments)
        finally:
            log._groups = groups

    patch.setattr(SegmentLog, "_merged_segment", merged)


def forget_the_watermarks_of_key_groups(patch: pytest.MonkeyPatch) -> None:
    """A subtask begins with the lowest watermark of several; windows that others fired fire again."""
    patch.setattr(GroupWatermarks, "store", lambda watermarks, time: None)


def delete_kept_rows_of_a_join_too_early(patch: pytest.MonkeyPatch) -> None:
    """By a bucket: the live rows are there, the stored rows are not."""
    store = StoredRows.store
    patch.setattr(StoredRows, "store", lambda rows, oldest_ms: store(rows, oldest_ms + rows._bucket_ms))


def _forget_changes(state: SubtaskState) -> None:
    for table in state.tables.values():
        match table:
            case KeyedTable():
                table.begin_changes()
            case ObjectTable():
                table.capture_changes()


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted bug. `seed`: finds it at once; after a change of the simulator, later seeds are tried as well."""

    plant: Plant
    seed: int
    proofs: bool = False  #: whether proofs stay on
    world: World = SimulationPlan  #: in which the bug shows sooner than in random worlds

    def __str__(self) -> str:
        return self.plant.__name__ + " with proofs" * self.proofs


PLANTED = [
    Planted(merge_by_key_columns_alone, 2),
    Planted(merge_by_key_columns_alone, 2, proofs=True),
    Planted(capture_no_tombstones, 19),
    Planted(merge_without_the_newest_file, 2),
    Planted(restore_deltas_in_reverse_order, 2),
    Planted(mark_rows_as_captured_when_the_write_ends, 6),
    Planted(forget_the_rows_of_a_failed_write, 14),
    Planted(mark_rows_as_captured_by_a_savepoint, 60),
    Planted(restore_the_first_snapshot_alone, 2),
    Planted(read_one_block_too_few, 0),
    Planted(keep_the_rows_of_other_subtasks_in_a_merge, 0, world=rescaling()),
    Planted(forget_the_watermarks_of_key_groups, 73, proofs=True),
    Planted(delete_kept_rows_of_a_join_too_early, 22, proofs=True),
]


def violation_with(planted: Planted, seeds: range, world: World = SimulationPlan) -> SeedViolation | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "OVERTAKING", 0.0)  # the seeds are of worlds in which all barriers are aligned
        if not planted.proofs:
            disable_proofs(patch)
        planted.plant(patch)
        return first_violation(seeds, world)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_simulator_finds_a_bug_in_the_life_of_state(planted: Planted) -> None:
    seeds = range(planted.seed, planted.seed + SEEDS_AFTER_A_CHANGE)
    violation = violation_with(planted, seeds, planted.world)
    assert violation is not None
    assert (violation.invariant in PROOF_VIOLATIONS) == (planted.plant is merge_by_key_columns_alone and planted.proofs)


@pytest.mark.slow
@pytest.mark.long
def test_each_bug_is_found_within_500_seeds() -> None:
    """Prints a table with the first seed that finds each bug, of all seeds from 0 on."""
    seeds: dict[str, int | None] = {}
    for planted in PLANTED:
        violation = violation_with(planted, range(MAX_SEEDS))
        seeds[str(planted)] = None if violation is None else violation.simulation.seed
        law = "-" if violation is None else violation.invariant
        sys.stdout.write(f"{planted!s:55} {seeds[str(planted)]!s:>5}  {law}\n")
    assert [name for name, seed in seeds.items() if seed is None] == []
