"""From a manifest to the next attempt."""

import dataclasses

import pytest
from msgspec.structs import replace

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import OperatorId
from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import MAX_WATERMARK
from runtime.core.restore.state_assignment import assign_state, restores_apart
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.core.snapshot.proofs import GroupProof
from tests.core.builders import (
    DONE,
    SNAPSHOT,
    chain,
    edge,
    looped,
    manifest,
    operator,
    rows_in_flight,
    segment,
    sink,
    source,
    subtask,
)

HELD = SubtaskSnapshot(keyed={"k": (segment("1"),)})


# ---------------------------------------------------------------- event time


def watermarks(old: list[SubtaskSnapshot], graph: JobGraph, uid: str = "a") -> list[int | None]:
    assigned = assign_state(manifest({"a": old, "b": [SubtaskSnapshot(watermark=s.watermark) for s in old]}), graph)
    return [assigned[subtask(f"{uid}/{i}")].watermark for i in range(graph.by_uid[OperatorId(uid)].parallelism)]


LISTED = [SubtaskSnapshot(watermark=900, lists={"l": (1,)}), SubtaskSnapshot(watermark=10, lists={"l": (2, 3)})]


@pytest.mark.parametrize("uid", ["a", "b"])
@pytest.mark.parametrize(
    ("old", "now", "expected"),
    [
        (LISTED, 2, [900, 10]),
        (LISTED, 3, [10, 10, 10]),
        (LISTED, 1, [10]),
        ([replace(snapshot, lists={}) for snapshot in LISTED], 3, [10, 10, 10]),
        ([replace(snapshot, lists={}, unions={"u": (1,)}) for snapshot in LISTED], 2, [10, 10]),
        ([replace(snapshot, lists={}, keyed={"k": ()}) for snapshot in LISTED], 3, [900, 10, 10]),
    ],
    ids=["lists stay", "lists move", "one subtask", "no state", "union list", "by key group"],
)
def test_a_source_begins_no_later_than_any_split_that_it_may_hold_was(
    old: list[SubtaskSnapshot], now: int, expected: list[int], uid: str
) -> None:
    """And so does the step that it feeds directly: its successors are told of its event time, too."""
    graph = JobGraph(
        (source("a", now), operator("b", now), sink("c", now)),
        (edge("a", "b", Partitioning.FORWARD), edge("b", "c", Partitioning.HASH)),
        max_parallelism=8,
    )
    assert watermarks(old, graph, uid) == expected


def test_event_time_behind_a_shuffle_is_not_that_of_one_sender() -> None:
    """A window that has fired stays closed, although an idle source was set aside far behind it."""
    graph = JobGraph((source("a"), sink("b")), (edge("a", "b", Partitioning.HASH),), max_parallelism=8)
    old = {"a": [SubtaskSnapshot(watermark=3)], "b": [SubtaskSnapshot(watermark=80)]}
    assigned = assign_state(manifest(old), graph)
    assert assigned[subtask("b/0")].watermark == 80


def test_event_time_is_not_that_of_a_finished_source() -> None:
    assigned = assign_state(manifest({"a": [DONE], "b": [SubtaskSnapshot(watermark=80)], "c": [SNAPSHOT]}), chain())
    assert assigned[subtask("b/0")].watermark == 80


def partly_finished(watermark: int | None = 1_200) -> list[SubtaskSnapshot]:
    """The first of two subtasks has finished. Their splits are keyed state, so they do not move to the other."""
    return [
        replace(DONE, watermark=MAX_WATERMARK, keyed={"k": ()}),
        SubtaskSnapshot(watermark=watermark, keyed={"k": ()}),
    ]


def test_event_time_is_not_that_of_a_finished_subtask_of_a_source() -> None:
    """It emits no further rows, so its unknown event time does not take that of its receivers."""
    old = {"a": partly_finished(), "b": [SubtaskSnapshot(watermark=1_000)] * 2}
    assigned = assign_state(manifest(old), chain(parallelism=2))
    assert [assigned[subtask(name)].watermark for name in ("a/0", "a/1", "b/0", "b/1")] == [None, 1_200, 1_000, 1_000]


def test_event_time_behind_redistributed_rows_is_no_later_than_any_that_their_holders_had_sent() -> None:
    """A step that holds rows back has received a higher watermark than it has sent."""
    held = SubtaskSnapshot(watermark=9, lists={"held": (1, 4)})
    old = {"a": [DONE, SubtaskSnapshot(watermark=9)], "b": [DONE, held], "c": [DONE, SubtaskSnapshot(watermark=0)]}
    graph = dataclasses.replace(
        chain(2), edges=(edge("a", "b", Partitioning.FORWARD), edge("b", "c", Partitioning.FORWARD))
    )
    assigned = assign_state(manifest(old), graph)
    assert [assigned[subtask(f"c/{n}")].watermark for n in range(2)] == [0, 0]


@pytest.mark.parametrize("watermark", [1_200, None])
def test_finished_subtasks_that_get_rows_of_running_ones_after_a_rescale_take_their_event_time(
    watermark: int | None,
) -> None:
    """The edges were forward, so the first subtasks of "b" and "c" had seen the end of event time."""
    over = [
        SubtaskSnapshot(watermark=MAX_WATERMARK, keyed={"k": ()}),
        SubtaskSnapshot(watermark=watermark, keyed={"k": ()}),
    ]
    assigned = assign_state(
        manifest({"a": partly_finished(watermark), "b": partly_finished(watermark), "c": over}), chain(parallelism=4)
    )
    assert [assigned[subtask(f"{uid}/0")].watermark for uid in "abc"] == [None, watermark, watermark]


# ---------------------------------------------------------------- assignment


def test_a_finished_operator_is_skipped() -> None:
    """S0-15, S0-50, S0-53: the others run."""
    assigned = assign_state(manifest({"a": [DONE], "b": [SNAPSHOT], "c": [SNAPSHOT]}), chain())
    finished = {str(subtask_id): restored.finished for subtask_id, restored in assigned.items()}
    assert finished == {"a/0": True, "b/0": False, "c/0": False}


def test_an_operator_that_the_checkpoint_does_not_know_starts_empty() -> None:
    """S0-62."""
    assigned = assign_state(manifest({"a": [HELD]}), chain())
    assert assigned[subtask("b/0")].snapshots == ()
    assert assigned[subtask("b/0")].watermark is None


def test_every_new_subtask_gets_the_snapshots_that_overlap_its_key_groups() -> None:
    """S3-21: and no others."""
    old = [SubtaskSnapshot(keyed={"k": (segment(str(index)),)}, watermark=10 + index) for index in range(2)]
    assigned = assign_state(manifest({"a": old}), chain(parallelism=3))
    paths = [[s.path for t in assigned[subtask(f"a/{i}")].snapshots for s in t.segments()] for i in range(3)]
    assert paths == [["0"], ["0", "1"], ["1"]]
    assert [assigned[subtask(f"a/{i}")].watermark for i in range(3)] == [10, 10, 11]


def test_list_state_is_assigned_in_contiguous_chunks() -> None:
    old = [SubtaskSnapshot(lists={"l": (1, 2, 3)}), SubtaskSnapshot(lists={"l": (4, 5), "m": (9,)})]
    assigned = assign_state(manifest({"a": old}), chain(parallelism=3))
    assert [assigned[subtask(f"a/{i}")].lists["l"] for i in range(3)] == [(1, 2), (3, 4), (5,)]
    assert [assigned[subtask(f"a/{i}")].lists["m"] for i in range(3)] == [(9,), (), ()]


def test_lists_stay_where_they_are_at_the_same_parallelism() -> None:
    """S0-56: Flink redistributes at a rescale only."""
    old = [SubtaskSnapshot(lists={"l": (1, 2, 3)}), SubtaskSnapshot(lists={"l": (4,), "m": (9,)})]
    assigned = assign_state(manifest({"a": old}), chain(parallelism=2))
    assert [assigned[subtask(f"a/{i}")].lists for i in range(2)] == [{"l": (1, 2, 3)}, {"l": (4,), "m": (9,)}]


def test_only_running_subtasks_contribute_list_state() -> None:
    """S0-18, S0-51, S0-55, S0-56: what a finished one still lists is no work to be done."""
    old = [SubtaskSnapshot(finished=True, lists={"l": ("done",)}), SubtaskSnapshot(lists={"l": ("x", "y")})]
    assigned = assign_state(manifest({"a": old}), chain(parallelism=2))
    assert [assigned[subtask(f"a/{i}")].lists["l"] for i in range(2)] == [("x",), ("y",)]


def test_keyed_state_of_finished_subtasks_still_moves_with_its_key_groups() -> None:
    """S0-18: a split that was read to its end is remembered as read."""
    old = [SubtaskSnapshot(finished=True, keyed={"k": (segment("0"),)}, watermark=99), SubtaskSnapshot(watermark=5)]
    assigned = assign_state(manifest({"a": old}), chain(parallelism=1))
    assert len(assigned[subtask("a/0")].snapshots) == 2
    assert assigned[subtask("a/0")].watermark == 5, "time is that of the running ones"


def test_broadcast_state_comes_from_a_running_subtask() -> None:
    """S0-57, S0-58: one that ended early may hold an older copy."""
    stale = SubtaskSnapshot(finished=True, broadcast={"rules": (segment("old"),)})
    snapshot = SubtaskSnapshot(broadcast={"rules": (segment("new"),)})
    for order in ([stale, snapshot], [snapshot, stale]):
        assigned = assign_state(manifest({"a": order}), chain(parallelism=2))
        assert all(assigned[subtask(f"a/{i}")].broadcast is snapshot for i in range(2))


def test_broadcast_state_survives_an_empty_subtask_zero() -> None:
    """S0-57."""
    snapshot = SubtaskSnapshot(broadcast={"rules": (segment("new"),)})
    assert assign_state(manifest({"a": [SNAPSHOT, snapshot]}), chain())[subtask("a/0")].broadcast is snapshot
    assert assign_state(manifest({"a": [SNAPSHOT]}), chain())[subtask("a/0")].broadcast is None


def test_state_follows_the_uid_when_steps_are_reordered() -> None:
    """S0-49."""
    graph = JobGraph((sink("c"), operator("b"), source("a")), (edge("b", "c"), edge("a", "b")), max_parallelism=8)
    assert assign_state(manifest({"b": [HELD]}), graph)[subtask("b/0")].snapshots == (HELD,)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_union_list_goes_whole_to_everyone(parallelism: int) -> None:
    """S3-28, S0-61."""
    graph = chain(parallelism=parallelism)
    old = [SubtaskSnapshot(unions={"parts": ("a", "b")}), SubtaskSnapshot(unions={"parts": ("c",), "more": (1,)})]
    assigned = assign_state(manifest({"b": old}), graph)
    for index in range(parallelism):
        assert assigned[subtask(f"b/{index}")].unions == {"parts": ("a", "b", "c"), "more": (1,)}


@pytest.mark.parametrize(
    ("heads", "assigned"),
    [(1, [("l0", "l1", "l2")]), (2, [("l0", "l2"), ("l1",)]), (4, [("l0",), ("l1",), ("l2",), ()])],
)
def test_the_logs_of_a_loop_are_assigned_in_turn_and_replayed(heads: int, assigned: list[tuple[str, ...]]) -> None:
    """S4-30: whatever the parallelism is now."""
    logs = [SubtaskSnapshot(feedback=(segment(f"l{number}"),)) for number in range(3)]
    restored = assign_state(manifest({"h": logs}), looped(heads=heads))
    assert [tuple(s.path for s in restored[subtask(f"h/{index}")].feedback) for index in range(heads)] == assigned


def test_a_log_that_was_let_go_is_not_replayed_into_an_operator_without_a_loop() -> None:
    savepoint = manifest({"b": [SubtaskSnapshot(feedback=(segment("l"),))]})
    assert assign_state(savepoint, chain())[subtask("b/0")].feedback == ()


# ---------------------------------------------------------------- rows in flight


@pytest.mark.parametrize("now", [1, 2, 3])
def test_each_subtask_gets_the_rows_in_flight_in_its_key_groups(now: int) -> None:
    """S4-48."""
    halves = [{group: GroupProof(1, group) for group in groups} for groups in (range(4), range(4, 8))]
    graph = JobGraph(
        (source("a"), operator("b", now), sink("c")),
        (edge("a", "b", Partitioning.HASH), edge("b", "c")),
        max_parallelism=8,
    )
    parts = [replace(rows_in_flight("a", str(min(half))), proof=half) for half in halves]
    old = manifest({"b": [SubtaskSnapshot(in_flight=(part,)) for part in parts]})
    assigned = assign_state(old, graph)
    for index in range(now):
        owned = key_group_range(index, 8, now)
        in_flight = assigned[subtask(f"b/{index}")].in_flight
        assert [{*part.proof} for part in in_flight] == [share for half in halves if (share := {*half} & {*owned})]
        assert {part.segments for part in in_flight} <= {part.segments for part in parts}


def test_no_subtask_keeps_its_state_beside_rows_in_flight() -> None:
    """Restarted senders do not repeat them, and a survivor has lost those in its queue."""
    held = manifest({"b": [SubtaskSnapshot(keyed={"k": ()})]})
    assert restores_apart(held, chain())
    assert not restores_apart(manifest({"b": [SubtaskSnapshot(in_flight=(rows_in_flight("a"),))]}), chain())
