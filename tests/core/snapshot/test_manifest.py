"""The values that a checkpoint is made of."""

import msgspec

from runtime.core.job.ids import CheckpointId
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest, SubtaskSnapshot, folder_of
from tests.core.builders import DONE, SNAPSHOT, manifest, rows_in_flight, segment


def test_what_counts_as_a_failure() -> None:
    """S2: lost races and shutdowns are nobody's fault."""
    counted = {reason for reason in FailureReason if reason.is_counted}
    assert counted == {
        FailureReason.ASYNC_FAILED,
        FailureReason.EXPIRED,
        FailureReason.FINALIZE_FAILED,
        FailureReason.ID_UNAVAILABLE,
        FailureReason.TRIGGER_FAILED,
    }


def test_segments_of_keyed_and_broadcast_state_are_listed() -> None:
    snapshot = SubtaskSnapshot(keyed={"k": (segment("1"), segment("2"))}, broadcast={"b": (segment("3"),)})
    assert [s.path for s in snapshot.segments()] == ["1", "2", "3"]
    assert [s.path for s in manifest({"a": [SNAPSHOT, snapshot]}).segments()] == ["1", "2", "3"]


def test_the_log_of_a_loop_is_part_of_the_snapshot() -> None:
    """S4-04, S4-40: beside the states of tasks the records of back-edges, and of no other channel."""
    snapshot = SubtaskSnapshot(keyed={"k": (segment("1"),)}, feedback=(segment("2"),))
    assert [s.path for s in snapshot.segments()] == ["1", "2"]


def test_every_segment_may_be_exchanged_in_its_place() -> None:
    snapshot = SubtaskSnapshot(
        keyed={"k": (segment("1"), segment("2"))}, broadcast={"b": (segment("3"),)}, feedback=(segment("4"),),
        lists={"l": (1,)}, in_flight=(rows_in_flight("a", "5"),),
    )  # fmt: skip
    savepoint = manifest({"a": [SNAPSHOT, snapshot]}, checkpoint=9)
    changed = savepoint.with_segments(lambda part: msgspec.structs.replace(part, path=f"x/{part.path}"))
    assert [part.path for part in changed.segments()] == ["x/1", "x/2", "x/3", "x/4", "x/5"]
    assert changed.with_segments(lambda part: msgspec.structs.replace(part, path=part.path[2:])) == savepoint


def test_finished_operators_are_those_with_every_subtask_done() -> None:
    """S0-16, S0-17, S0-49: entries stand by operator, then subtask; the mark sits on the operator."""
    savepoint = manifest({"a": [DONE, DONE], "b": [DONE, SNAPSHOT], "c": [SNAPSHOT]})
    assert savepoint.finished_operators() == ("a",)


def test_a_manifest_survives_json() -> None:
    savepoint = manifest({"a": [SubtaskSnapshot(keyed={"k": (segment("1"),)}, lists={"l": (1, "x")}, watermark=5)]})
    assert msgspec.json.decode(msgspec.json.encode(savepoint), type=Manifest) == savepoint


def test_the_folder_of_a_checkpoint_is_unique_to_the_attempt_that_writes_it() -> None:
    assert folder_of(CheckpointKind.CHECKPOINT, CheckpointId(7), 3) == "chk-7-3"
    assert folder_of(CheckpointKind.DRAIN, CheckpointId(8), 3) == "savepoint-8-3"
