"""The latest row of each key against a plain dictionary: disorder, equal times, restores at another parallelism."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import DataRejected, JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.latest import Latest
from runtime.operators.partition import partition_by_key_group
from tests.example_counts import examples
from tests.operators.harness import Harness

COLUMNS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])

Event = tuple[str | None, int, int]
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-5, 5), st.integers(-100, 100)), max_size=12
)


def batch(events: list[Event]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "t": time, "v": value} for key, time, value in events], COLUMNS)


def rows(output: list[dict[str, Any]]) -> list[Event]:
    return [(row["k"], row["t"], row["v"]) for row in output]


def deploy(parallelism: int, store: MemorySnapshotStore, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
    return [
        Harness(Latest(["k"], "t"), store=store, snapshots=snapshots, index=index, parallelism=parallelism)
        for index in range(parallelism)
    ]


@settings(max_examples=examples(80))
@given(st.lists(EVENTS | st.sampled_from([1, 3, 7]), max_size=25))
def test_a_row_passes_unless_its_key_has_had_a_later_row(steps: list[Any]) -> None:
    """A number is a restore with as many subtasks: state moves with its key groups."""
    store, newest, checkpoints = MemorySnapshotStore(), dict[str | None, int](), 0
    subtasks = deploy(3, store, [])
    for step in steps:
        if isinstance(step, int):
            checkpoints += 1
            subtasks = deploy(step, store, [each.snapshot(f"chk-{checkpoints}") for each in subtasks])
            continue
        latest: dict[str | None, Event] = {}
        for event in step:
            if event[1] >= newest.get(event[0], event[1]):
                newest[event[0]] = event[1]
                latest[event[0]] = event
        expected = sorted(latest.values(), key=str)
        parts = partition_by_key_group(batch(step), ["k"], 16, len(subtasks))
        results = [rows(e.process(part)) for e, part in zip(subtasks, parts, strict=True) if part is not None]
        assert sorted((event for each in results for event in each), key=str) == expected


def test_rows_that_pass_keep_their_order() -> None:
    harness = Harness(Latest(["k"], "t"))
    assert rows(harness.process(batch([("a", 3, 1), ("b", 1, 2), ("a", 2, 3), ("b", 1, 4), ("c", 0, 5)]))) == [
        ("a", 3, 1), ("b", 1, 4), ("c", 0, 5),
    ]  # fmt: skip
    assert harness.process(batch([("a", 2, 6)])) == []


def test_a_time_that_is_null_or_no_time_is_refused() -> None:
    second = pa.RecordBatch.from_pylist([{"k": "a", "t": 0, "v": 1}, {"k": "a", "t": None, "v": 1}], COLUMNS)
    with pytest.raises(DataRejected, match=r"the event time in column 't' is null \(row 2 of a batch\)"):
        Harness(Latest(["k"], "t")).process(second)
    with pytest.raises(JobRejected, match="event times are a timestamp"):
        Harness(Latest(["v"], "k")).process(batch([("a", 1, 1)]))
