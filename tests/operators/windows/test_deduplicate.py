"""Removal of duplicates against a plain set: disorder, lateness, freed state, restores at another parallelism."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.output_tag import OutputTag
from runtime.operators.partition import partition_by_key_group
from runtime.operators.windows.deduplicate import DUPLICATES_COUNTER, Deduplicate
from tests.example_counts import examples
from tests.operators.harness import Harness

PART = 10
COLUMNS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
LATE = OutputTag("late", COLUMNS)

Event = tuple[str | None, int, int]
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-30, 60), st.integers(-100, 100)), max_size=12
)
RESCALE = st.tuples(st.just("rescale"), st.sampled_from([1, 3, 7]))


def batch(events: list[Event]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "t": time, "v": value} for key, time, value in events], COLUMNS)


def rows(output: list[dict[str, Any]]) -> list[Event]:
    return [(row["k"], row["t"], row["v"]) for row in output]


class Oracle:
    """The same, one record at a time."""

    def __init__(self) -> None:
        self.seen: set[tuple[str | None, int]] = set()
        self.watermark = MIN_WATERMARK
        self.late: list[Event] = []
        self.duplicates = 0

    def process(self, events: list[Event]) -> list[Event]:
        output = []
        for event in events:
            part = event[1] // PART
            if (part + 1) * PART - 1 <= self.watermark:
                self.late.append(event)
            elif (event[0], part) in self.seen:
                self.duplicates += 1
            else:
                self.seen.add((event[0], part))
                output.append(event)
        return output


def deploy(parallelism: int, store: MemorySnapshotStore, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
    return [
        Harness(
            Deduplicate(["k"], PART, "t", LATE), store=store, snapshots=snapshots, index=index, parallelism=parallelism
        )
        for index in range(parallelism)
    ]


def late_rows(subtasks: list[Harness]) -> list[Event]:
    return [event for each in subtasks for _, late in each.out.side for event in rows(late.to_pylist())]


def counted(subtasks: list[Harness], name: str) -> int:
    return sum(each.context.counters.get(name, 0) for each in subtasks)


@settings(max_examples=examples(80))
@given(st.lists(EVENTS | st.integers(-40, 80) | RESCALE, max_size=25))
def test_the_first_row_of_a_key_in_each_part_passes(steps: list[Any]) -> None:
    """S4-10: rows that pass keep their order, and state moves with its key groups."""
    store, oracle, checkpoints = MemorySnapshotStore(), Oracle(), 0
    subtasks, late, duplicates = deploy(3, store, []), [], 0
    for step in steps:
        if isinstance(step, int):
            oracle.watermark = max(oracle.watermark, step)
            assert [row for each in subtasks for row in each.watermark(step)] == []
        elif isinstance(step, tuple):
            checkpoints += 1
            late += late_rows(subtasks)
            duplicates += counted(subtasks, DUPLICATES_COUNTER)
            snapshots = [each.snapshot(f"chk-{checkpoints}") for each in subtasks]
            subtasks = deploy(step[1], store, snapshots)
            for each in subtasks:
                each.watermark(oracle.watermark)
        else:
            expected = oracle.process(step)
            parts = partition_by_key_group(batch(step), ["k"], 16, len(subtasks))
            results = [rows(e.process(part)) for e, part in zip(subtasks, parts, strict=True) if part is not None]
            assert sorted(str(event) for each in results for event in each) == sorted(map(str, expected))
            assert all(each == [event for event in expected if event in each] for each in results)
    assert sorted(map(str, late + late_rows(subtasks))) == sorted(map(str, oracle.late))
    assert duplicates + counted(subtasks, DUPLICATES_COUNTER) == oracle.duplicates


def test_the_state_of_a_part_is_freed_when_the_watermark_has_passed_it() -> None:
    harness = Harness(Deduplicate(["k"], PART, "t"))
    harness.process(batch([("a", 0, 1), ("b", 9, 1), ("a", 10, 1)]))
    harness.watermark(8)
    assert harness.process(batch([("b", 9, 2)])) == []
    harness.watermark(9)
    segments = harness.snapshot("chk-1").keyed["seen"]
    assert sum(segment.rows for segment in segments) == 1
    assert harness.process(batch([("b", 9, 3), ("b", 10, 4)])) == [{"k": "b", "t": 10, "v": 4}]
    assert harness.context.counters[LATE_RECORDS_COUNTER] == 1
    harness.watermark(MAX_WATERMARK)
    assert sum(segment.rows for segment in harness.snapshot("chk-2", full=True).keyed.get("seen", ())) == 0


def test_state_of_another_length_is_refused() -> None:
    store = MemorySnapshotStore()
    harness = Harness(Deduplicate(["k"], PART, "t"), store=store)
    harness.process(batch([("a", 0, 1)]))
    harness.watermark(5)
    snapshot = harness.snapshot("chk-1")
    with pytest.raises(JobRejected, match="10 ms, not of 20 ms"):
        Harness(Deduplicate(["k"], 2 * PART, "t"), store=store, snapshots=[snapshot])


def test_late_rows_need_the_declared_columns() -> None:
    harness = Harness(Deduplicate(["k"], PART, "t", OutputTag("late", pa.schema([("k", pa.string())]))))
    with pytest.raises(JobRejected, match="late rows have the columns"):
        harness.process(batch([("a", 0, 1)]))
