"""How the checkpoints of a run have gone."""

from random import Random

import pytest

from runtime.core import statistics
from runtime.core.checkpoint import FailureReason, SnapshotTimings, SubtaskSnapshot
from runtime.core.coordinator import Coordinator, CoordinatorSettings
from runtime.core.effects import CoordinatorEffect, IssueId, ReportCheckpoint, StoreManifest
from runtime.core.events import (
    Acknowledged,
    CheckpointDeclined,
    CheckpointRequested,
    CoordinatorEvent,
    CoordinatorSuspended,
    IdIssued,
    JobStarted,
    ManifestRecorded,
)
from runtime.core.ids import CheckpointId, Token
from runtime.core.messages import CheckpointKind as Kind
from runtime.core.statistics import REMEMBERED, Spread, Statistics, observed, spread
from tests.core.builders import chain, manifest, segment, subtask

ONE, TWO = CheckpointId(1), CheckpointId(2)
KEPT = SubtaskSnapshot(keyed={"counts": (segment("one"), segment("two"))})
WROTE = SnapshotTimings(written_bytes=10)


def begun(checkpoint: int, at: int = 0, kind: Kind = Kind.CHECKPOINT) -> ReportCheckpoint:
    return ReportCheckpoint(CheckpointId(checkpoint), kind, at, at, 0, 2)


def over(
    checkpoint: int, at: int, reason: FailureReason | None = None, kind: Kind = Kind.CHECKPOINT
) -> ReportCheckpoint:
    return ReportCheckpoint(CheckpointId(checkpoint), kind, 0, at, 2, 2, reason)


def stored(checkpoint: int) -> StoreManifest:
    made = manifest({"a": [KEPT, KEPT]}, checkpoint)
    return StoreManifest(made, tuple((subtask(f"a/{n}"), WROTE) for n in range(2)))


def after(*effects: CoordinatorEffect) -> Statistics:
    now = Statistics()
    for effect in effects:
        now = observed(now, effect)
    return now


def counts(now: Statistics) -> tuple[int, int, int, int]:
    return now.triggered, now.in_progress, now.completed, now.failed


def test_a_checkpoint_is_counted_from_its_trigger_to_its_end() -> None:
    """S2-47, S2-53: with its duration and its sizes."""
    effects = (begun(1), stored(1), over(1, at=30))
    assert [counts(after(*effects[:n])) for n in (0, 1, 2, 3)] == [(0,) * 4, (1, 1, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0)]
    found = after(*effects).latest_completed
    assert found is not None
    assert (found.duration_ms, found.state_bytes, found.written_bytes, found.completed) == (30, 40, 20, True)


def test_one_that_failed_says_why_and_is_no_part_of_the_spread() -> None:
    now = after(begun(1), over(1, 900, FailureReason.EXPIRED), begun(2), stored(2), over(2, 40))
    assert counts(now) == (2, 0, 1, 1)
    assert now.latest_failed is not None
    assert now.latest_failed.reason is FailureReason.EXPIRED
    assert now.duration_ms == spread([40])
    assert now.state_bytes == spread([40])
    assert now.written_bytes == spread([20])


@pytest.mark.parametrize("kind", [Kind.SAVEPOINT, Kind.STOP, Kind.DRAIN])
def test_savepoints_are_told_apart(kind: Kind) -> None:
    now = after(begun(1), over(1, 10), begun(2, kind=kind), over(2, 20, kind=kind))
    assert now.latest_completed is not None
    assert now.latest_savepoint is not None
    assert (now.latest_completed.checkpoint, now.latest_savepoint.checkpoint) == (1, 2)


def test_what_is_still_in_progress_has_no_duration() -> None:
    with pytest.raises(AssertionError, match="in progress"):
        assert after(begun(1)).open[ONE].duration_ms


def test_effects_that_are_about_no_checkpoint_change_nothing() -> None:
    assert after(IssueId()) == Statistics()


def test_a_restore_is_counted_and_settles_what_was_left_open() -> None:
    """The one whose record came while the master was away has completed; the other one never will."""
    now = statistics.restored(after(begun(1), stored(1), begun(2)), ONE, at=70)
    assert (*counts(now), now.restored, now.latest_restored) == (2, 0, 1, 1, 1, 1)
    assert now.latest_failed is not None
    assert (now.latest_failed.checkpoint, now.latest_failed.reason) == (2, FailureReason.SUSPENDED)


def test_an_end_that_a_restore_has_settled_already_is_not_counted_twice() -> None:
    now = statistics.restored(after(begun(1), stored(1)), ONE, at=70)
    assert observed(now, over(1, 80)) == now
    assert observed(now, over(2, 80, FailureReason.SUSPENDED)) == now


def test_the_history_is_bounded_but_the_counts_are_not() -> None:
    now = Statistics()
    for number in range(1, REMEMBERED + 3):
        now = observed(observed(now, begun(number)), over(number, number))
    assert len(now.history) == REMEMBERED
    assert now.completed == REMEMBERED + 2
    assert now.duration_ms is not None
    assert now.duration_ms.least == 3


def test_nothing_has_no_spread_and_one_value_is_all_of_it() -> None:
    assert spread([]) is None
    assert Statistics().duration_ms is None
    assert spread([5]) == Spread(5, 5, 5, 5, 5, 5, 5)


def test_percentiles_are_interpolated_and_do_not_depend_on_order() -> None:
    values = [float(n) for n in range(1, 102)]
    Random(3).shuffle(values)
    assert spread(values) == Spread(1, 51, 101, 51, 91, 96, 100)
    assert spread([10, 20]) == Spread(10, 15, 20, 15, 19, 19.5, 19.9)


def test_what_a_coordinator_wishes_for_is_enough() -> None:
    """S2-53: one completes, one is declined, one is pending when the attempt ends."""
    machine = Coordinator("job", Token(1), chain(), CoordinatorSettings(interval_ms=None, min_pause_ms=0))
    now = Statistics()

    def handle(event: CoordinatorEvent) -> None:
        nonlocal now
        for effect in machine.handle(event):
            now = observed(now, effect)
            assert now.triggered == now.in_progress + now.completed + now.failed

    handle(JobStarted(0))
    for number in (1, 2, 3):
        handle(CheckpointRequested(number * 100, Kind.CHECKPOINT, f"{number}"))
        handle(IdIssued(number * 100, CheckpointId(number)))
        if number == 1:
            for one in chain().subtasks:
                handle(Acknowledged(130, one, ONE, KEPT, WROTE))
            handle(ManifestRecorded(150, ONE))
        if number == 2:
            handle(CheckpointDeclined(210, subtask("a/0"), TWO, FailureReason.ASYNC_FAILED, "disk full"))
    assert counts(now) == (3, 1, 1, 1)
    handle(CoordinatorSuspended(400))
    assert counts(now) == (3, 0, 1, 2)
    assert now.duration_ms == spread([50])
    assert now.state_bytes == spread([60])
