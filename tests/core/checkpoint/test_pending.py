"""A checkpoint on its way."""

import pytest

from runtime.core.checkpoint.pending import PendingCheckpoint
from runtime.core.checkpoint.plan import plan_checkpoint
from runtime.core.job.ids import CheckpointId, SubtaskId, Token
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.snapshot.control import Acknowledgement
from runtime.core.snapshot.manifest import FinishedState, SubtaskSnapshot
from tests.core.builders import DONE, SNAPSHOT, TIMINGS, chain, subtask

GRAPH = chain()
A, B, C = GRAPH.subtasks


def pending(ended: set[str] | None = None) -> PendingCheckpoint:
    barrier = Barrier(CheckpointId(7), CheckpointKind.CHECKPOINT, 100)
    return PendingCheckpoint(barrier, plan_checkpoint(GRAPH, {subtask(name) for name in ended or ()}), None, 500)


def acknowledge(checkpoint: PendingCheckpoint, subtask: SubtaskId, snapshot: SubtaskSnapshot) -> bool:
    return checkpoint.acknowledge(140, subtask, Acknowledgement(CheckpointId(7), snapshot, TIMINGS))


def test_repeats_count_once_and_strangers_not_at_all() -> None:
    """S2-46."""
    checkpoint = pending(ended={"a/0"})
    assert acknowledge(checkpoint, B, SNAPSHOT)
    assert not acknowledge(checkpoint, B, DONE), "a repeat"
    assert not acknowledge(checkpoint, A, SNAPSHOT), "it takes no part"
    complete = [checkpoint.complete]
    assert acknowledge(checkpoint, C, SNAPSHOT)
    complete.append(checkpoint.complete)
    assert complete == [False, True]
    assert checkpoint.acks[B].snapshot == SNAPSHOT


def test_the_manifest_takes_the_last_snapshot_of_what_has_ended() -> None:
    """S0-15, S0-20: ended and done subtasks both count as finished."""
    checkpoint = pending(ended={"a/0"})
    acknowledge(checkpoint, B, DONE)
    acknowledge(checkpoint, C, SNAPSHOT)
    last = SubtaskSnapshot(finished=True, watermark=9)
    manifest = checkpoint.manifest("job", Token(3), GRAPH, {A: last})
    assert manifest.operators["a"].subtasks == {0: last}
    assert {uid: o.finished for uid, o in manifest.operators.items()} == {
        "a": FinishedState.FINISHED,
        "b": FinishedState.FINISHED,
        "c": FinishedState.RUNNING,
    }
    assert (manifest.checkpoint, manifest.token, manifest.triggered_at) == (7, 3, 100)


def test_it_releases_all_only_when_every_snapshot_was_taken_after_the_end() -> None:
    checkpoint = pending()
    for member, snapshot in ((A, DONE), (B, DONE), (C, SNAPSHOT)):
        acknowledge(checkpoint, member, snapshot)
    assert not checkpoint.releases_all
    checkpoint.acks[C] = Acknowledgement(CheckpointId(7), DONE, TIMINGS)
    assert checkpoint.releases_all


def test_there_is_no_partial_manifest() -> None:
    """S0-46."""
    with pytest.raises(AssertionError, match="every acknowledgement"):
        pending().manifest("job", Token(1), GRAPH, {})
