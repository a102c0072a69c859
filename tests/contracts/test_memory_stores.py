"""The in-memory twins that have no counterpart to share a test with here: the checkpoint record and the clock."""

import threading

import pytest

from runtime.core.checkpoint import Manifest
from runtime.core.messages import CheckpointKind
from runtime.errors import CorruptState, ProtocolViolation
from runtime.io.clock import Deadline, SystemClock
from runtime.io.memory import ManualClock, MemoryCheckpointStore, MemoryRecord, MemorySnapshotStore
from runtime.ports import CheckpointStore, Clock


def manifest(token: int, checkpoint: int) -> Manifest:
    return Manifest(
        job="job",
        checkpoint=checkpoint,
        kind=CheckpointKind.CHECKPOINT,
        token=token,
        triggered_at=0,
        max_parallelism=128,
        operators={},
    )


def attempt(record: MemoryRecord) -> tuple[int, CheckpointStore]:
    token = record.new_attempt()
    return token, MemoryCheckpointStore(record, token)


# ---------------------------------------------------------------- checkpoints


def test_ids_increase_over_all_attempts_of_a_job() -> None:
    record = MemoryRecord()
    _, first = attempt(record)
    ids = [first.next_checkpoint_id(), first.next_checkpoint_id()]
    _, second = attempt(record)
    assert [*ids, second.next_checkpoint_id()] == [1, 2, 3]


def test_no_two_threads_get_the_same_id() -> None:
    _, store = attempt(MemoryRecord())
    taken: list[int | None] = []

    def take() -> None:
        taken.extend(store.next_checkpoint_id() for _ in range(500))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number in taken if number is not None) == list(range(1, 2001))


def test_a_superseded_attempt_gets_no_id_and_records_nothing() -> None:
    record = MemoryRecord()
    old_token, old = attempt(record)
    checkpoint = old.next_checkpoint_id()
    assert checkpoint is not None
    attempt(record)
    assert old.next_checkpoint_id() is None
    assert old.record_completed(manifest(old_token, checkpoint), "chk-1", 10) is False
    assert record.completed == {}


def test_recording_again_changes_nothing_and_is_confirmed() -> None:
    record = MemoryRecord()
    token, store = attempt(record)
    assert store.record_completed(manifest(token, 1), "chk-1", 10) is True
    assert store.record_completed(manifest(token, 1), "chk-1-again", 11) is True
    assert [(row.path, row.size_bytes) for row in record.completed.values()] == [("chk-1", 10)]


def test_an_attempt_cannot_record_what_another_took() -> None:
    record = MemoryRecord()
    token, store = attempt(record)
    with pytest.raises(ProtocolViolation, match="attempt 1 records a checkpoint of attempt 9"):
        store.record_completed(manifest(token + 8, 1), "chk-1", 10)


# ---------------------------------------------------------------- files


def test_a_file_whose_producer_fails_does_not_exist() -> None:
    store = MemorySnapshotStore()

    def half() -> "list[bytes]":
        raise OSError("the disk of somebody else")

    with pytest.raises(OSError, match="somebody else"):
        store.put("a/b", (chunk for chunk in half()))
    with pytest.raises(CorruptState, match="a/b"):
        store.get("a/b")


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(1_700_000_000_000)], ids=["system", "manual"])
def test_a_clock_never_runs_backwards_and_counts_from_the_epoch(clock: Clock) -> None:
    first, started = clock.now_ms(), clock.monotonic_ms()
    assert first >= 1_700_000_000_000
    assert isinstance(first, int)
    assert clock.monotonic_ms() >= started


def test_a_manual_clock_moves_when_it_is_moved() -> None:
    clock = ManualClock(1000)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1250, 1250.0)
    with pytest.raises(ProtocolViolation):
        clock.advance(-1)


def test_a_deadline_passes_and_its_rest_is_never_negative() -> None:
    assert Deadline(0.0).passed
    assert Deadline(-5.0).remaining_s == 0.0
    later = Deadline(3600.0)
    assert not later.passed
    assert 0.0 < later.remaining_s <= 3600.0
