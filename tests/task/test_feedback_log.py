"""The log of a loop: what is stored of it, and for which checkpoint."""

import pyarrow as pa
import pytest

from runtime.core.job.ids import CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind, Records
from runtime.core.snapshot.manifest import SnapshotTimings, SubtaskSnapshot
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.state.backend import StateCapture
from runtime.task.feedback_log import CapturedSnapshot, FeedbackLogs, replay_records

FIRST, SECOND = CheckpointId(1), CheckpointId(2)


def copied(checkpoint: CheckpointId, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> CapturedSnapshot:
    capture = StateCapture(keyed={}, broadcast={}, lists={}, unions={})
    return CapturedSnapshot(
        barrier=Barrier(checkpoint, kind, 0), capture=capture, rest=SubtaskSnapshot(), timings=SnapshotTimings()
    )


def records(*values: object) -> Records:
    batch = pa.record_batch({"v": list(values)})
    return Records(batch, batch.num_rows, batch.nbytes)


def stored(logs: FeedbackLogs, checkpoint: CheckpointId, store: MemorySnapshotStore) -> list[list[object]]:
    """Completes a log; the values of each of its segments, read as on a restore."""
    _, log = logs.complete(checkpoint)
    segments = log.write(store, f"folder/{checkpoint}", 8)
    assert all((s.first_group, s.last_group) == (0, 7) for s in segments)
    return [
        [row["v"] for part in replay_records(store, [s], max_rows=2) for row in part.payload.to_pylist()]
        for s in segments
    ]


def test_one_record_may_belong_to_several_checkpoints() -> None:
    logs, store = FeedbackLogs(), MemorySnapshotStore()
    logs.begin(copied(FIRST), None)
    logs.add((FIRST,), records(1))
    logs.begin(copied(SECOND), None)
    logs.add((FIRST, SECOND), records(2, 3))
    assert stored(logs, FIRST, store) == [[1, 2, 3]]
    logs.add((SECOND,), records(4))
    assert stored(logs, SECOND, store) == [[2, 3, 4]]


def test_a_log_without_records_is_no_file() -> None:
    logs, store = FeedbackLogs(), MemorySnapshotStore()
    logs.begin(copied(FIRST), None)
    assert stored(logs, FIRST, store) == []
    assert store.list("") == []


def test_a_long_log_is_several_files_and_is_replayed_in_steps() -> None:
    logs, store = FeedbackLogs(max_segment_bytes=30), MemorySnapshotStore()
    logs.begin(copied(FIRST), None)
    for value in range(7):
        logs.add((FIRST,), records(value))
    logs.add((FIRST,), records("text"))
    assert stored(logs, FIRST, store) == [[0, 1, 2, 3], [4, 5, 6], ["text"]]
    segments = store.list("folder")
    assert len(segments) == 3


def test_a_log_that_is_dropped_is_forgotten() -> None:
    logs = FeedbackLogs()
    logs.begin(copied(FIRST), None)
    logs.add((FIRST,), records(1))
    logs.drop(FIRST)
    with pytest.raises(KeyError):
        logs.complete(FIRST)


@pytest.mark.parametrize("complete", [False, True])
def test_the_next_try_of_a_stop_takes_over_what_the_first_has_logged(complete: bool) -> None:
    """Whether or not the first was complete when it was given up."""
    logs, store = FeedbackLogs(), MemorySnapshotStore()
    logs.begin(copied(FIRST, CheckpointKind.STOP), None)
    logs.add((FIRST,), records(1))
    if complete:
        assert stored(logs, FIRST, store) == [[1]]
    logs.add((FIRST,), records(2))
    logs.begin(copied(SECOND, CheckpointKind.STOP), FIRST)
    logs.add((SECOND,), records(3))
    assert stored(logs, SECOND, store) == [[1, 2, 3]]
    logs.close()
