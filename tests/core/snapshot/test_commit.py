"""Permits and debts of two-phase commit."""

import pytest

from runtime.core.job.ids import CheckpointId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.commit import (
    CommitPermit,
    pending_committables,
    pending_only,
    permit_for_manifest,
    permit_from_master,
)
from runtime.core.snapshot.manifest import SubtaskSnapshot
from tests.core.builders import SNAPSHOT, manifest


def test_a_permit_names_the_recorded_checkpoint_and_the_attempt_that_uses_it() -> None:
    """S0-31."""
    permit = permit_for_manifest(manifest({"a": [SNAPSHOT]}, checkpoint=4, token=2), Token(5))
    assert permit == CommitPermit("job", Token(5), CheckpointId(4), taken_by=Token(2))


def test_nobody_gets_a_permit_for_the_manifest_of_a_newer_attempt() -> None:
    """S1-12."""
    with pytest.raises(AssertionError, match="newer attempt"):
        permit_for_manifest(manifest({"a": [SNAPSHOT]}, token=6), Token(5))


def test_every_committable_is_owed_also_of_finished_operators() -> None:
    """S0-21: a skipped operator's pending commits are not skipped."""
    savepoint = manifest(
        {
            "done": [SubtaskSnapshot(finished=True, committables=("x",))],
            "none": [SNAPSHOT],
            "two": [SubtaskSnapshot(committables=("y",)), SubtaskSnapshot(committables=("z",))],
        }
    )
    assert pending_committables(savepoint) == {"done": ("x",), "two": ("y", "z")}


def test_a_slot_gets_its_permit_from_the_word_of_its_own_master() -> None:
    """The connection is fenced by the attempt token, so the word is that of the attempt."""
    assert permit_from_master("job", Token(2), CheckpointId(4)) == CommitPermit(
        "job", Token(2), CheckpointId(4), Token(2)
    )


def test_a_savepoint_owes_no_more_what_a_later_checkpoint_of_its_attempt_does_not_name() -> None:
    snapshots = {"a": [owing("x", "y"), owing("z")], "b": [owing("x")]}
    savepoint = manifest(snapshots, checkpoint=4, token=2, kind=CheckpointKind.SAVEPOINT)
    later = manifest({"a": [owing("y", "new"), SNAPSHOT]}, checkpoint=5, token=2)
    assert pending_committables(pending_only(savepoint, later)) == {"a": ("y",)}
    assert pending_committables(pending_only(savepoint)) == {}
    assert pending_only(savepoint).operators.keys() == savepoint.operators.keys()


@pytest.mark.parametrize(("checkpoint", "token"), [(5, 3), (3, 2), (4, 2)])
def test_a_checkpoint_of_another_attempt_or_an_earlier_one_shows_nothing(checkpoint: int, token: int) -> None:
    """What an older attempt prepared for a savepoint alone is disowned, and waits for that savepoint's restore."""
    savepoint = manifest({"a": [owing("x")]}, checkpoint=4, token=2, kind=CheckpointKind.SAVEPOINT)
    assert pending_only(savepoint, manifest({}, checkpoint=checkpoint, token=token)) == savepoint


def owing(*committables: str) -> SubtaskSnapshot:
    return SubtaskSnapshot(committables=committables)
