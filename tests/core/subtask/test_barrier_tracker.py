"""Barriers on several channels when nobody waits: tables of what comes and what follows."""

import itertools
from random import Random

import pytest

from runtime.core.job.ids import MAX_ABORTED_IDS, ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.subtask.barrier_handler import Aligned, AlignmentOutcome, GivenUp
from runtime.core.subtask.barrier_tracker import MAX_AWAITED_CHECKPOINTS, BarrierTracker

ONE, TWO, THREE = (ChannelId(0, n, 0) for n in range(3))


def barrier(checkpoint: int) -> Barrier:
    return Barrier(CheckpointId(checkpoint), CheckpointKind.CHECKPOINT, 0)


def given_up(checkpoint: int, *, overtaken: bool = False) -> GivenUp:
    return GivenUp(CheckpointId(checkpoint), overtaken)


def fresh(*channels: ChannelId) -> BarrierTracker:
    return BarrierTracker(live=frozenset(channels or (ONE, TWO)))


def hear(now: BarrierTracker, *barriers: tuple[ChannelId, int]) -> tuple[BarrierTracker, list[AlignmentOutcome]]:
    """The barriers of `barriers`, one after another."""
    verdicts: list[AlignmentOutcome] = []
    for channel, checkpoint in barriers:
        now, outcomes = now.on_barrier(channel, barrier(checkpoint))
        verdicts += outcomes
    return now, verdicts


@pytest.mark.parametrize("order", list(itertools.permutations((ONE, TWO, THREE))))
def test_the_last_barrier_decides_in_every_order(order: tuple[ChannelId, ...]) -> None:
    """S4-24: what the quick channels send meanwhile is handled, and so is in the snapshot."""
    now, verdicts = hear(fresh(ONE, TWO, THREE), *((channel, 1) for channel in order[:-1]))
    assert verdicts == []
    now, verdicts = hear(now, (order[-1], 1))
    assert verdicts == [Aligned(barrier(1))]
    assert now.awaited == ()


def test_several_checkpoints_are_awaited_at_once_and_all_are_taken() -> None:
    """A quick channel is three barriers ahead of a slow one."""
    now, verdicts = hear(fresh(), (ONE, 1), (ONE, 2), (ONE, 3))
    assert verdicts == []
    assert [entry.checkpoint for entry in now.awaited] == [1, 2, 3]
    now, verdicts = hear(now, (TWO, 1), (TWO, 2), (TWO, 3))
    assert verdicts == [Aligned(barrier(1)), Aligned(barrier(2)), Aligned(barrier(3))]


def test_a_channel_that_repeats_itself_counts_once() -> None:
    """S2-46."""
    assert hear(fresh(), (ONE, 1), (ONE, 1))[1] == []


def test_taking_one_gives_up_all_before_it() -> None:
    """The slow channel never had a barrier of 1, which was given up upstream."""
    now, verdicts = hear(fresh(), (ONE, 1), (ONE, 2), (TWO, 2))
    assert verdicts == [given_up(1, overtaken=True), Aligned(barrier(2))]
    assert hear(now, (TWO, 1)) == (now, []), "a straggler"


def test_a_channel_that_ends_counts_for_all_that_are_awaited() -> None:
    """S0-19: barrier and end on one channel count once."""
    now, _ = hear(fresh(ONE, TWO, THREE), (ONE, 1), (TWO, 1), (ONE, 2), (TWO, 2))
    now, verdicts = now.on_channel_end(ONE)
    assert verdicts == []
    now, verdicts = now.on_channel_end(THREE)
    assert verdicts == [Aligned(barrier(1)), Aligned(barrier(2))]
    assert now.live == {TWO}


def test_an_ended_channel_cannot_speak() -> None:
    now, _ = fresh().on_channel_end(ONE)
    with pytest.raises(AssertionError, match="delivers no message"):
        now.on_barrier(ONE, barrier(1))
    with pytest.raises(AssertionError, match="delivers no message"):
        now.on_channel_end(ONE)


def test_a_source_takes_what_is_injected_at_once_and_once() -> None:
    """S4-21."""
    now, verdicts = BarrierTracker(live=frozenset()).on_trigger(barrier(1))
    assert verdicts == [Aligned(barrier(1))]
    assert now.on_trigger(barrier(1)) == (now, [])


def test_an_injected_barrier_waits_for_the_last_messages_of_ended_predecessors() -> None:
    """S0-19."""
    now, verdicts = fresh(ONE).on_trigger(barrier(1))
    assert verdicts == []
    assert now.on_channel_end(ONE)[1] == [Aligned(barrier(1))]


def test_a_cancel_gives_up_its_checkpoint_and_all_before_it_once_each() -> None:
    now, _ = hear(fresh(), (ONE, 1), (ONE, 2), (ONE, 3))
    now, verdicts = now.on_cancel(CheckpointId(2))
    assert verdicts == [given_up(1, overtaken=True), given_up(2)]
    assert now.on_cancel(CheckpointId(2)) == (now, [])
    assert now.on_cancel(CheckpointId(1)) == (now, [])
    assert hear(now, (TWO, 3))[1] == [Aligned(barrier(3))], "a later one is not concerned"


def test_a_cancel_that_comes_first_keeps_the_checkpoint_from_starting() -> None:
    now, verdicts = fresh().on_cancel(CheckpointId(1))
    assert verdicts == [given_up(1)]
    assert hear(now, (ONE, 1), (TWO, 1)) == (now, [])


def test_an_abort_ends_one_checkpoint_without_a_word() -> None:
    """Unlike a cancel it leaves the earlier ones alone."""
    now, _ = hear(fresh(), (ONE, 1), (ONE, 2))
    now = now.on_abort(CheckpointId(2))
    assert now.on_cancel(CheckpointId(2)) == (now, []), "known already"
    now, verdicts = hear(now, (TWO, 1), (TWO, 2))
    assert verdicts == [Aligned(barrier(1))]
    assert now.awaited == ()


def test_an_abort_of_what_is_over_changes_nothing_and_others_are_forgotten_in_time() -> None:
    now, _ = hear(fresh(ONE), (ONE, 2))
    assert now.on_abort(CheckpointId(2)) == now
    now = now.on_abort(CheckpointId(3))
    assert now.aborted == {3}
    assert hear(now, (ONE, 3), (ONE, 4))[0].aborted == frozenset()


def test_no_more_than_so_many_are_awaited() -> None:
    now, verdicts = hear(fresh(), *((ONE, n) for n in range(1, MAX_AWAITED_CHECKPOINTS + 2)))
    assert verdicts == [given_up(1, overtaken=True)]
    assert len(now.awaited) == MAX_AWAITED_CHECKPOINTS


def test_random_schedules_snapshot_each_checkpoint_at_most_once_and_in_order() -> None:
    """S4-14: and what no channel left out is taken, unless it was aborted or overtaken."""
    rng = Random(11)
    for _ in range(2_000):
        now = fresh(ONE, TWO, THREE)
        scripts = {channel: [n for n in range(1, 6) if rng.random() < 0.9] for channel in now.live}
        intersection = set.intersection(*(set(script) for script in scripts.values()))
        checkpoints: list[int] = []
        aborted: set[int] = set()
        while any(scripts.values()):
            channel = rng.choice(sorted(c for c in scripts if scripts[c]))
            now, verdicts = hear(now, (channel, scripts[channel].pop(0)))
            checkpoints += [v.barrier.checkpoint for v in verdicts if isinstance(v, Aligned)]
            if rng.random() < 0.05:
                aborted.add(rng.randint(1, 6))
                now = now.on_abort(CheckpointId(max(aborted)))
        assert checkpoints == sorted(set(checkpoints))
        assert intersection - aborted <= set(checkpoints) <= intersection


def test_ids_of_aborted_checkpoints_are_kept_within_a_bound() -> None:
    now = fresh()
    for checkpoint in range(1, 1_001):
        now = now.on_abort(CheckpointId(checkpoint))
    assert now.aborted == set(range(1_001 - MAX_ABORTED_IDS, 1_001))
