"""What is recorded of a completed checkpoint for people to see."""

from collections.abc import Iterable

from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.master.finalize import Recorded, finalize_checkpoint
from tests.core.builders import manifest, segment, subtask

KEPT = SubtaskSnapshot(keyed={"counts": (segment("one"), segment("two"))})
QUICK = SnapshotTimings(start_delay_ms=1, alignment_ms=30, sync_ms=1, async_ms=2, written_bytes=10)
SLOW = SnapshotTimings(start_delay_ms=5, alignment_ms=0, pre_barrier_ms=3, sync_ms=4, async_ms=99.96, written_bytes=20)


def test_an_operator_shows_its_longest_phases_and_its_slowest_subtask() -> None:
    records = MemoryRunStore()
    timings = ((subtask("a/0"), QUICK), (subtask("a/1"), SLOW))
    completed = manifest({"a": [KEPT, KEPT], "b": []})
    assert finalize_checkpoint(MemorySnapshotStore(), records, completed, timings, lambda: 9) == Recorded()
    row, ended = records.completed[0].operators
    assert (row["subtasks"], row["state_bytes"], row["written_bytes"]) == (2, 40, 30)
    longest = {name: ms for name, ms in row.items() if name.startswith("max_")}
    assert longest == {
        "max_start_delay_ms": 5, "max_alignment_ms": 30, "max_pre_barrier_ms": 3, "max_sync_ms": 4,
        "max_async_ms": 100.0,
    }  # fmt: skip
    assert row["slowest"] == {
        "subtask": 1, "start_delay_ms": 5, "alignment_ms": 0, "pre_barrier_ms": 3, "sync_ms": 4, "async_ms": 100.0,
    }  # fmt: skip
    assert (ended["max_alignment_ms"], ended["written_bytes"], ended["slowest"]) == (0, 0, None)


def test_the_duration_of_a_checkpoint_includes_the_time_that_its_manifest_takes() -> None:
    now, records = [9], MemoryRunStore()

    class SlowStore(MemorySnapshotStore):
        def put(self, path: str, data: Iterable[bytes]) -> None:
            now[0] += 4_000
            super().put(path, data)

    assert finalize_checkpoint(SlowStore(), records, manifest({"a": [KEPT]}), (), lambda: now[0]) == Recorded()
    assert records.completed[0].at == 4_009
