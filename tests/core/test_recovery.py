"""From a manifest to the next attempt."""

import pytest

from runtime.core.checkpoint import FORMAT_VERSION, SubtaskSnapshot
from runtime.core.graph import JobGraph
from runtime.core.mapping import check_restorable
from runtime.core.recovery import assign
from runtime.errors import JobRejected
from tests.core.builders import DONE, SNAPSHOT, chain, edge, manifest, operator, segment, sink, source, subtask

HELD = SubtaskSnapshot(keyed={"k": (segment("1"),)})


# ---------------------------------------------------------------- may it be restored


@pytest.mark.parametrize(
    ("made", "code", "field"),
    [
        (manifest({"a": [SNAPSHOT]}, format=FORMAT_VERSION + 1), "newer-format", "checkpoint"),
        (manifest({"a": [SNAPSHOT]}, max_parallelism=16), "max-parallelism-changed", "max_parallelism"),
        (manifest({"gone": [HELD]}), "unmapped-state", "gone"),
        (manifest({"gone": [SubtaskSnapshot(committables=(1,))]}), "unmapped-state", "gone"),
        (manifest({"b": [DONE], "a": [SNAPSHOT]}), "operator-before-finished", "a"),
        (manifest({"b": [DONE]}), "operator-before-finished", "a"),
    ],
)
def test_what_would_lose_or_misplace_state_is_refused_by_name(made: object, code: str, field: str) -> None:
    """S0-24, S0-63, S3-23."""
    with pytest.raises(JobRejected) as refused:
        check_restorable(made, chain())  # type: ignore[arg-type]
    assert (refused.value.code, refused.value.field) == (code, field)


def test_new_operators_behind_finished_ones_and_dropped_ones_without_state_are_allowed() -> None:
    """S0-62."""
    check_restorable(manifest({"a": [DONE], "gone": [SNAPSHOT]}), chain())


# ---------------------------------------------------------------- dealing


def test_a_finished_operator_is_skipped() -> None:
    """S0-15, S0-50, S0-53: the others run."""
    dealt = assign(manifest({"a": [DONE], "b": [SNAPSHOT], "c": [SNAPSHOT]}), chain())
    assert {str(one): restored.finished for one, restored in dealt.items()} == {"a/0": True, "b/0": False, "c/0": False}


def test_an_operator_that_the_checkpoint_does_not_know_starts_empty() -> None:
    """S0-62."""
    dealt = assign(manifest({"a": [HELD]}), chain())
    assert dealt[subtask("b/0")].snapshots == ()
    assert dealt[subtask("b/0")].watermark is None


def test_every_new_subtask_gets_the_snapshots_that_overlap_its_key_groups() -> None:
    """S3-21: and no others."""
    old = [SubtaskSnapshot(keyed={"k": (segment(str(index)),)}, watermark=10 + index) for index in range(2)]
    dealt = assign(manifest({"a": old}), chain(parallelism=3))
    found = [[s.path for t in dealt[subtask(f"a/{i}")].snapshots for s in t.segments()] for i in range(3)]
    assert found == [["0"], ["0", "1"], ["1"]]
    assert [dealt[subtask(f"a/{i}")].watermark for i in range(3)] == [10, 10, 11]


def test_list_state_is_dealt_in_contiguous_chunks() -> None:
    old = [SubtaskSnapshot(lists={"l": (1, 2, 3)}), SubtaskSnapshot(lists={"l": (4, 5), "m": (9,)})]
    dealt = assign(manifest({"a": old}), chain(parallelism=3))
    assert [dealt[subtask(f"a/{i}")].lists["l"] for i in range(3)] == [(1, 2), (3, 4), (5,)]
    assert [dealt[subtask(f"a/{i}")].lists["m"] for i in range(3)] == [(9,), (), ()]


def test_only_running_subtasks_contribute_list_state() -> None:
    """S0-18, S0-51, S0-55, S0-56: what a finished one still lists is no work to be done."""
    old = [SubtaskSnapshot(finished=True, lists={"l": ("done",)}), SubtaskSnapshot(lists={"l": ("x", "y")})]
    dealt = assign(manifest({"a": old}), chain(parallelism=2))
    assert [dealt[subtask(f"a/{i}")].lists["l"] for i in range(2)] == [("x",), ("y",)]


def test_keyed_state_of_finished_subtasks_still_moves_with_its_key_groups() -> None:
    """S0-18: a split that was read to its end is remembered as read."""
    old = [SubtaskSnapshot(finished=True, keyed={"k": (segment("0"),)}, watermark=99), SubtaskSnapshot(watermark=5)]
    dealt = assign(manifest({"a": old}), chain(parallelism=1))
    assert len(dealt[subtask("a/0")].snapshots) == 2
    assert dealt[subtask("a/0")].watermark == 5, "time is that of the running ones"


def test_broadcast_state_comes_from_a_running_subtask() -> None:
    """S0-57, S0-58: one that ended early may hold an older copy."""
    stale = SubtaskSnapshot(finished=True, broadcast={"rules": (segment("old"),)})
    fresh = SubtaskSnapshot(broadcast={"rules": (segment("new"),)})
    for order in ([stale, fresh], [fresh, stale]):
        dealt = assign(manifest({"a": order}), chain(parallelism=2))
        assert all(dealt[subtask(f"a/{i}")].broadcast is fresh for i in range(2))


def test_broadcast_state_survives_an_empty_subtask_zero() -> None:
    """S0-57."""
    fresh = SubtaskSnapshot(broadcast={"rules": (segment("new"),)})
    assert assign(manifest({"a": [SNAPSHOT, fresh]}), chain())[subtask("a/0")].broadcast is fresh
    assert assign(manifest({"a": [SNAPSHOT]}), chain())[subtask("a/0")].broadcast is None


def test_state_follows_the_uid_when_steps_are_reordered() -> None:
    """S0-49."""
    graph = JobGraph((sink("c"), operator("b"), source("a")), (edge("b", "c"), edge("a", "b")), max_parallelism=8)
    assert assign(manifest({"b": [HELD]}), graph)[subtask("b/0")].snapshots == (HELD,)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_union_list_goes_whole_to_everyone(parallelism: int) -> None:
    """S3-28, S0-61."""
    graph = chain(parallelism=parallelism)
    old = [SubtaskSnapshot(unions={"parts": ("a", "b")}), SubtaskSnapshot(unions={"parts": ("c",), "more": (1,)})]
    dealt = assign(manifest({"b": old}), graph)
    for index in range(parallelism):
        assert dealt[subtask(f"b/{index}")].unions == {"parts": ("a", "b", "c"), "more": (1,)}
