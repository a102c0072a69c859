"""The in-memory twins that have no counterpart to share a test with here: a failing producer, and the clock."""

import pytest

from runtime.clock import Deadline, SystemClock
from runtime.errors import CorruptState, ProtocolViolation
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Clock
from tests.manual_clock import ManualClock


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
    assert Deadline(0.0).has_passed
    assert Deadline(-5.0).remaining_s == 0.0
    later = Deadline(3600.0)
    assert not later.has_passed
    assert 0.0 < later.remaining_s <= 3600.0
