"""Barriers on several channels: tables of what comes and what follows."""

import itertools
from random import Random

import pytest

from runtime.core.job.ids import MAX_ABORTED_IDS, ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.subtask.barrier_alignment import BarrierAlignment
from runtime.core.subtask.barrier_handler import Aligned, AlignmentOutcome, GivenUp, Overtakes

ONE, TWO, THREE = (ChannelId(0, n, 0) for n in range(3))


def barrier(checkpoint: int) -> Barrier:
    return Barrier(CheckpointId(checkpoint), CheckpointKind.CHECKPOINT, 0)


def fresh(*channels: ChannelId) -> BarrierAlignment:
    return BarrierAlignment(live=frozenset(channels or (ONE, TWO)))


@pytest.mark.parametrize("order", list(itertools.permutations((ONE, TWO, THREE))))
def test_the_last_barrier_releases_all_in_every_order(order: tuple[ChannelId, ...]) -> None:
    """S4-24, S4-25, S4-27: a channel that has delivered is blocked until the others have."""
    now = fresh(ONE, TWO, THREE)
    for channel in order[:-1]:
        now, verdicts = now.on_barrier(channel, barrier(1))
        assert verdicts == []
        assert channel in now.blocked
    now, verdicts = now.on_barrier(order[-1], barrier(1))
    assert verdicts == [Aligned(barrier(1))]
    assert now.blocked == frozenset()
    assert now.pending is None


def test_a_blocked_channel_cannot_speak() -> None:
    now, _ = fresh().on_barrier(ONE, barrier(1))
    with pytest.raises(AssertionError, match="delivers no message"):
        now.on_barrier(ONE, barrier(2))
    with pytest.raises(AssertionError, match="delivers no message"):
        now.on_channel_end(ONE)


def test_a_newer_barrier_overtakes_one_that_was_given_up_upstream() -> None:
    now, _ = fresh().on_barrier(ONE, barrier(1))
    now, verdicts = now.on_barrier(TWO, barrier(2))
    assert verdicts == [GivenUp(CheckpointId(1), overtaken=True)]
    assert now.blocked == {TWO}
    now, verdicts = now.on_barrier(ONE, barrier(2))
    assert verdicts == [Aligned(barrier(2))]


def test_two_overlapping_checkpoints_are_both_taken_in_order() -> None:
    """S3-49."""
    now = fresh()
    results = []
    for channel, checkpoint in ((ONE, 1), (TWO, 1), (TWO, 2), (ONE, 2)):
        now, verdicts = now.on_barrier(channel, barrier(checkpoint))
        results += verdicts
    assert results == [Aligned(barrier(1)), Aligned(barrier(2))]


def test_a_straggler_of_a_checkpoint_that_is_over_changes_nothing() -> None:
    now, _ = fresh().on_barrier(ONE, barrier(1))
    now, _ = now.on_cancel(CheckpointId(1))
    after, verdicts = now.on_barrier(TWO, barrier(1))
    assert (after, verdicts) == (now, [])


def test_a_channel_that_ends_is_no_longer_awaited() -> None:
    now, _ = fresh().on_barrier(ONE, barrier(1))
    now, verdicts = now.on_channel_end(TWO)
    assert verdicts == [Aligned(barrier(1))]
    assert now.live == {ONE}


def test_a_source_takes_what_is_injected_at_once() -> None:
    """S4-21: its barrier comes from outside the graph."""
    now, verdicts = BarrierAlignment(live=frozenset()).on_trigger(barrier(1))
    assert verdicts == [Aligned(barrier(1))]
    assert now.on_trigger(barrier(1)) == (now, []), "a repeated trigger is no second snapshot"


def test_an_injected_barrier_waits_for_the_last_messages_of_ended_predecessors() -> None:
    """S0-19."""
    now, verdicts = fresh(ONE).on_trigger(barrier(1))
    assert verdicts == []
    assert now.blocked == frozenset()
    _, verdicts = now.on_channel_end(ONE)
    assert verdicts == [Aligned(barrier(1))]


def test_a_cancel_gives_the_pending_checkpoint_up() -> None:
    now, _ = fresh().on_barrier(ONE, barrier(1))
    now, verdicts = now.on_cancel(CheckpointId(1))
    assert verdicts == [GivenUp(CheckpointId(1), overtaken=False)]
    assert now.blocked == frozenset()


def test_a_cancel_that_comes_first_keeps_the_checkpoint_from_starting() -> None:
    now, verdicts = fresh().on_cancel(CheckpointId(1))
    assert verdicts == [GivenUp(CheckpointId(1), overtaken=False)]
    assert now.on_barrier(TWO, barrier(1)) == (now, [])


def test_a_cancel_of_a_newer_checkpoint_overtakes_the_pending_one() -> None:
    now, _ = fresh().on_barrier(ONE, barrier(1))
    now, verdicts = now.on_cancel(CheckpointId(2))
    assert verdicts == [GivenUp(CheckpointId(1), overtaken=True), GivenUp(CheckpointId(2), overtaken=False)]
    assert now.newest == 2


@pytest.mark.parametrize("checkpoint", [1, 2])
def test_a_cancel_of_what_is_over_changes_nothing(checkpoint: int) -> None:
    now, _ = fresh().on_cancel(CheckpointId(2))
    assert now.on_cancel(CheckpointId(checkpoint)) == (now, [])


def test_an_abort_unblocks_without_a_word() -> None:
    """The coordinator tells everybody itself."""
    now, _ = fresh().on_barrier(ONE, barrier(1))
    now = now.on_abort(CheckpointId(1))
    assert now.pending is None
    assert now.blocked == frozenset()


def test_an_abort_that_comes_before_the_barrier_is_remembered() -> None:
    now = fresh().on_abort(CheckpointId(3))
    assert now.on_cancel(CheckpointId(3)) == (now, []), "known already"
    now, verdicts = now.on_barrier(ONE, barrier(3))
    assert verdicts == []
    assert now.blocked == frozenset()
    assert now.newest == 3
    assert now.aborted == frozenset()


def test_an_abort_of_a_later_checkpoint_is_kept_past_an_earlier_one() -> None:
    now = fresh(ONE).on_abort(CheckpointId(3))
    now, _ = now.on_barrier(ONE, barrier(2))
    assert now.aborted == {3}


def test_an_abort_of_what_is_over_changes_nothing() -> None:
    now, _ = fresh(ONE).on_barrier(ONE, barrier(2))
    assert now.on_abort(CheckpointId(2)) == now


def test_random_schedules_snapshot_each_checkpoint_at_most_once_and_in_order() -> None:
    """S4-14: nobody stays blocked without a pending barrier."""
    rng = Random(7)
    for _ in range(2_000):
        now = BarrierAlignment(live=frozenset((ONE, TWO, THREE)))
        scripts = {channel: [n for n in range(1, 6) if rng.random() < 0.8] for channel in now.live}
        checkpoints: list[int] = []
        while any(scripts[channel] for channel in now.live - now.blocked):
            channel = rng.choice(sorted(c for c in now.live - now.blocked if scripts[c]))
            now, verdicts = now.on_barrier(channel, barrier(scripts[channel].pop(0)))
            if rng.random() < 0.1:
                now = now.on_abort(CheckpointId(rng.randint(1, 6)))
            checkpoints += [v.barrier.checkpoint for v in verdicts if isinstance(v, Aligned)]
            assert now.pending is not None or not now.blocked
        assert checkpoints == sorted(set(checkpoints))


def test_ids_of_aborted_checkpoints_are_kept_within_a_bound_and_the_newest_stay() -> None:
    """A subtask that no barrier reaches, behind a long build side, is told of one aborted checkpoint after another."""
    now = fresh()
    for checkpoint in range(1, 1_001):
        now = now.on_abort(CheckpointId(checkpoint))
    assert now.aborted == set(range(1_001 - MAX_ABORTED_IDS, 1_001))
    now, verdicts = now.on_barrier(ONE, barrier(1_000))
    assert (now.pending, verdicts) == (None, []), "an aborted one that is remembered blocks no channel"
    forgotten, _ = fresh().on_barrier(ONE, barrier(5))
    _, verdicts = forgotten.on_barrier(TWO, barrier(6))
    assert verdicts == [GivenUp(CheckpointId(5), overtaken=True)], "one that is forgotten ends with the next barrier"


# ---------------------------------------------------------------- overtaking


def test_a_barrier_in_alignment_overtakes_the_rows_of_the_other_channels() -> None:
    now, _ = fresh(ONE, TWO, THREE).on_barrier(ONE, barrier(1))
    now, outcomes = now.on_timeout(barrier(1))
    assert outcomes == [Overtakes(barrier(1), frozenset({TWO, THREE}))]
    assert (now.pending, now.blocked) == (None, frozenset())
    assert now.on_barrier(TWO, barrier(1)) == (now, []), "the checkpoint is taken once"


def test_a_barrier_in_a_queue_overtakes_the_rows_of_all_channels() -> None:
    now, outcomes = fresh().on_timeout(barrier(1))
    assert outcomes == [Overtakes(barrier(1), frozenset({ONE, TWO}))]
    assert not now.may_overtake(barrier(1))
    assert now.may_overtake(barrier(2))


def test_a_newer_barrier_that_overtakes_rows_gives_up_the_checkpoint_in_alignment() -> None:
    now, _ = fresh().on_barrier(ONE, barrier(1))
    _, outcomes = now.on_timeout(barrier(2))
    assert outcomes == [GivenUp(CheckpointId(1), overtaken=True), Overtakes(barrier(2), frozenset({ONE, TWO}))]


@pytest.mark.parametrize("kind", [CheckpointKind.STOP, CheckpointKind.DRAIN])
def test_the_barrier_of_a_stop_or_drain_overtakes_nothing(kind: CheckpointKind) -> None:
    assert not fresh().may_overtake(Barrier(CheckpointId(1), kind, 0))


def test_a_late_or_aborted_barrier_overtakes_nothing() -> None:
    now, _ = fresh().on_timeout(barrier(2))
    assert not any(now.may_overtake(barrier(checkpoint)) for checkpoint in (1, 2))
    assert not now.on_abort(CheckpointId(3)).may_overtake(barrier(3))


@pytest.mark.parametrize("seed", range(200))
def test_each_checkpoint_is_taken_at_most_once_whatever_overtakes(seed: int) -> None:
    """Random barriers, in order on each channel, and time-outs between them."""
    rng, now = Random(seed), fresh(ONE, TWO, THREE)
    waiting = {channel: list(range(1, 6)) for channel in (ONE, TWO, THREE)}
    taken: list[int] = []

    def add(outcomes: list[AlignmentOutcome]) -> None:
        taken.extend(each.barrier.checkpoint for each in outcomes if not isinstance(each, GivenUp))

    while any(waiting.values()):
        free = [channel for channel in waiting if waiting[channel] and channel not in now.blocked]
        if rng.random() < 0.3 and now.may_overtake(late := now.pending or barrier(rng.choice(waiting[free[0]]))):
            now, outcomes = now.on_timeout(late)
        else:
            channel = rng.choice(free)
            now, outcomes = now.on_barrier(channel, barrier(waiting[channel].pop(0)))
        add(outcomes)
        assert bool(now.blocked) <= (now.pending is not None)
    assert taken == sorted(set(taken))
