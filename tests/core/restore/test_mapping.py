"""What becomes of each operator in a restore, as a value."""

from dataclasses import replace

import msgspec
import pytest

from runtime.core.job.graph import JobGraph, Partitioning, Role
from runtime.core.restore.declarations import LOWER_BOUND, SESSION_GAP, UPPER_BOUND, WINDOW_SIZE, WINDOW_SLIDE
from runtime.core.restore.mapping import (
    OperatorMapping,
    OperatorMatch,
    RestoreTarget,
    TargetOperator,
    check_restorable,
    mapping_report,
)
from runtime.core.snapshot.manifest import FORMAT_VERSION, SET_ASIDE_TIMES, Manifest, SubtaskSnapshot
from runtime.errors import JobRejected
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
)

HELD = SubtaskSnapshot(keyed={"k": (segment("1"),)})
OWING = SubtaskSnapshot(committables=("file",))


def mapped(manifest: Manifest, graph: JobGraph | None = None) -> dict[str, OperatorMapping]:
    return {
        mapping.uid: mapping
        for mapping in mapping_report(manifest, RestoreTarget.of(graph or chain()), "job").operators
    }


def fates(manifest: Manifest, graph: JobGraph | None = None) -> dict[str, OperatorMatch]:
    return {uid: mapping.fate for uid, mapping in mapped(manifest, graph).items()}


# ---------------------------------------------------------------- the report


def test_each_operator_has_a_fate_and_a_reason() -> None:
    """S0-49, S0-50: by uid, whatever their order in either."""
    savepoint = manifest({"gone": [SNAPSHOT], "b": [HELD], "a": [DONE]})
    assert fates(savepoint) == {
        "a": OperatorMatch.FINISHED,
        "b": OperatorMatch.MATCHED,
        "c": OperatorMatch.NEW,
        "gone": OperatorMatch.DROPPED,
    }
    assert all(mapping.reason for mapping in mapped(savepoint).values())
    assert not mapping_report(savepoint, RestoreTarget.of(chain()), "job").all_problems


def test_a_step_with_nothing_but_times_of_rows_set_aside_may_be_dropped() -> None:
    times, rows = ({name: (1,)} for name in (SET_ASIDE_TIMES, "rows"))
    for lists, is_refused in ((times, False), (times | rows, True)):
        savepoint = manifest({"gone": [SubtaskSnapshot(lists=lists)]})
        assert bool(mapping_report(savepoint, RestoreTarget.of(chain()), "job").all_problems) is is_refused


def test_parallelism_is_told_before_and_after() -> None:
    mappings = mapped(manifest({"a": [HELD, HELD], "gone": [SNAPSHOT]}), chain(parallelism=3))
    assert (mappings["a"].parallelism_before, mappings["a"].parallelism_after) == (2, 3)
    assert (mappings["b"].parallelism_before, mappings["b"].parallelism_after) == (None, 3)
    assert (mappings["gone"].parallelism_before, mappings["gone"].parallelism_after) == (1, None)


def test_the_report_prints_a_line_per_operator() -> None:
    lines = str(
        mapping_report(manifest({"a": [DONE], "gone": [SNAPSHOT]}), RestoreTarget.of(chain()), "job")
    ).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("a: finished, parallelism 1 to 1, 0 bytes; ")
    assert lines[-1].startswith("gone: dropped, parallelism 1 to none, ")


def test_a_partly_finished_operator_is_matched_and_said_to_be_so() -> None:
    """S0-51."""
    mapping = mapped(manifest({"a": [DONE, HELD]}))["a"]
    assert (mapping.fate, mapping.partly_finished) == (OperatorMatch.MATCHED, True)
    assert "some of its subtasks had finished" in mapping.reason
    assert not mapped(manifest({"a": [HELD]}))["a"].partly_finished


def test_state_that_no_job_made_is_said_to_be_so() -> None:
    savepoint = manifest({"a": [HELD]})
    operators = {"a": msgspec.structs.replace(savepoint.operators["a"], origin="bootstrapped from rows")}
    mapping = mapped(msgspec.structs.replace(savepoint, operators=operators))["a"]
    assert mapping.reason == "its state is restored (bootstrapped from rows)"


def test_the_bytes_of_state_are_those_of_all_segments() -> None:
    snapshot = SubtaskSnapshot(keyed={"k": (segment("1"), segment("2"))}, broadcast={"r": (segment("3"),)})
    assert mapped(manifest({"a": [snapshot, HELD]}))["a"].state_bytes == 40


def test_the_graph_may_be_the_one_that_the_console_stores() -> None:
    """The same report before the restore as in the job master."""
    savepoint = manifest({"a": [HELD], "gone": [HELD]})
    stored = msgspec.json.decode(msgspec.json.encode(chain().to_json()))
    assert mapping_report(savepoint, msgspec.convert(stored, RestoreTarget), "job") == mapping_report(
        savepoint, RestoreTarget.of(chain()), "job"
    )


@pytest.mark.parametrize(
    ("compiled", "most", "now", "after"),
    [(2, 128, 8, 8), (2, 4, 8, 4), (2, 4, 3, 3), (2, 2, 8, 2), (1, 1, 8, 1)],
)
def test_a_graph_at_another_parallelism(compiled: int, most: int, now: int, after: int) -> None:
    """An author's own number may be more than the job had, or just as many."""
    target_operator = TargetOperator(
        uid="a", role=Role.SOURCE, parallelism=compiled, commits=False, durations={}, aggregates=(), times=(), most=most
    )
    target = RestoreTarget(max_parallelism=128, operators=(target_operator,), edges=())
    (result,) = target.for_parallelism(now).operators
    assert (result.uid, result.parallelism) == ("a", after)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("savepoint", "code", "field"),
    [
        (manifest({"a": [SNAPSHOT]}, format=FORMAT_VERSION + 1), "other-format", "checkpoint"),
        (manifest({"a": [SNAPSHOT]}, max_parallelism=16), "max-parallelism-changed", "max_parallelism"),
        (manifest({"gone": [HELD]}), "unmapped-state", "gone"),
        (manifest({"gone": [SubtaskSnapshot(lists={"l": (1,)})]}), "unmapped-state", "gone"),
        (manifest({"gone": [SubtaskSnapshot(unions={"empty": (), "u": (1,)})]}), "unmapped-state", "gone"),
        (manifest({"gone": [OWING]}), "unmapped-output", "gone"),
        (manifest({"b": [OWING]}), "unmapped-output", "b"),
        (manifest({"b": [DONE], "a": [SNAPSHOT]}), "operator-before-finished", "a"),
        (manifest({"b": [DONE]}), "operator-before-finished", "a"),
    ],
)
def test_what_would_lose_or_misplace_state_is_refused_by_name(savepoint: Manifest, code: str, field: str) -> None:
    """S0-24, S0-63, S3-23."""
    with pytest.raises(JobRejected) as error:
        check_restorable(savepoint, chain(), "job")
    assert (error.value.code, error.value.field) == (code, field)


def test_output_of_a_committing_step_in_mid_stream_is_restored() -> None:
    """S0-14: in the master's graph and in that of the console."""
    committing = JobGraph(
        (source("a"), replace(operator("b"), commits=True), sink("c")),
        (edge("a", "b"), edge("b", "c")),
        max_parallelism=8,
    )
    check_restorable(manifest({"b": [OWING], "c": [OWING]}), committing, "job")
    stored = committing.to_json()
    assert [entry["commits"] for entry in stored["operators"]] == [False, True, True]
    assert not mapping_report(manifest({"b": [OWING]}), msgspec.convert(stored, RestoreTarget), "job").all_problems


def test_a_savepoint_of_another_job_is_refused() -> None:
    with pytest.raises(JobRejected, match="belongs to job job, not to job other") as error:
        check_restorable(manifest({"a": [HELD]}), chain(), "other")
    assert error.value.code == "other-job"


def test_a_new_operator_before_a_finished_one_is_incompatible_and_one_behind_it_is_not() -> None:
    """S0-24, S0-62, S0-63."""
    graph = JobGraph(
        (source("a"), operator("before"), operator("b"), operator("behind"), sink("c")),
        (edge("a", "before"), edge("before", "b"), edge("b", "behind"), edge("behind", "c")),
        max_parallelism=8,
    )
    mappings = mapped(manifest({"a": [DONE], "b": [DONE], "c": [HELD]}), graph)
    assert (mappings["before"].fate, mappings["before"].problem and mappings["before"].problem.code) == (
        OperatorMatch.INCOMPATIBLE,
        "operator-before-finished",
    )
    assert "feeds 'b'" in mappings["before"].reason
    assert (mappings["behind"].fate, mappings["behind"].problem) == (OperatorMatch.NEW, None)


def test_new_operators_behind_finished_ones_and_dropped_ones_without_state_are_allowed() -> None:
    """S0-62: what was declared and left empty is no state; row-wise functions have timers that they may never use."""
    declared = SubtaskSnapshot(keyed={"k": ()}, broadcast={"b": ()}, lists={"l": ()}, unions={"u": ()})
    for nothing in (SNAPSHOT, declared):
        check_restorable(manifest({"a": [DONE], "gone": [nothing]}), chain(), "job")


# ---------------------------------------------------------------- types of key columns


def keyed(*key_types: str) -> JobGraph:
    to_b = replace(edge("a", "b", Partitioning.HASH), key_types=key_types)
    return JobGraph((source("a"), operator("b"), sink("c")), (to_b, edge("b", "c")), max_parallelism=8)


@pytest.mark.parametrize(("before", "now"), [("float", "double"), ("int64", "uint64"), ("int64", "string")])
def test_a_key_column_of_another_type_is_refused_before_the_start(before: str, now: str) -> None:
    """By operator, column and both types; letting state go does not help, since the operator is there."""
    savepoint = manifest({"b": [SNAPSHOT, SubtaskSnapshot(key_types={"key": before})]})
    mapping = mapped(savepoint, keyed(now))["b"]
    assert mapping.fate is OperatorMatch.INCOMPATIBLE
    assert mapping.problem is not None
    assert (mapping.problem.code, mapping.problem.field) == ("key-type-changed", "b")
    assert mapping.problem.detail.startswith(f"key column 'key' is {before} in the checkpoint and {now} in the job")
    with pytest.raises(JobRejected):
        check_restorable(savepoint, keyed(now), "job", allow_unmapped=True)


def test_a_key_column_may_become_wider_and_types_may_be_unknown_on_either_side() -> None:
    narrow = manifest({"b": [SubtaskSnapshot(key_types={"key": "int32"})]})
    for graph in (keyed("int64"), keyed("int32"), keyed()):
        check_restorable(narrow, graph, "job")
    check_restorable(manifest({"b": [SNAPSHOT]}), keyed("float"), "job")


# ---------------------------------------------------------------- durations


def timed(durations: dict[str, int]) -> JobGraph:
    to_b = edge("a", "b", Partitioning.HASH)
    step = replace(operator("b"), durations=tuple(durations.items()))
    return JobGraph((source("a"), step, sink("c")), (to_b, edge("b", "c")), max_parallelism=8)


def timed_manifest(durations: dict[str, int], snapshot: SubtaskSnapshot = SNAPSHOT) -> Manifest:
    savepoint = manifest({"a": [snapshot], "b": [snapshot]})
    changed = msgspec.structs.replace(savepoint.operators["b"], durations=durations)
    return msgspec.structs.replace(savepoint, operators=savepoint.operators | {"b": changed})


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({WINDOW_SIZE: 60, WINDOW_SLIDE: 10}, {WINDOW_SIZE: 30, WINDOW_SLIDE: 10}, "window size is 60 ms in the"),
        ({WINDOW_SIZE: 60, WINDOW_SLIDE: 60}, {WINDOW_SIZE: 60, WINDOW_SLIDE: 30}, "window slide is 60 ms in the"),
        ({SESSION_GAP: 5}, {SESSION_GAP: 6}, "session gap is 5 ms in the checkpoint and 6 ms in the job"),
        ({LOWER_BOUND: -5, UPPER_BOUND: 5}, {LOWER_BOUND: -6, UPPER_BOUND: 5}, "lower bound is -5 ms"),
        ({LOWER_BOUND: -5, UPPER_BOUND: 5}, {LOWER_BOUND: -5, UPPER_BOUND: 6}, "upper bound is 5 ms"),
    ],
)
def test_state_of_other_durations_is_refused_before_the_start(
    before: dict[str, int], now: dict[str, int], changed: str
) -> None:
    """By operator, with both values; letting state go does not help, since the operator is there."""
    mapping = mapped(timed_manifest(before), timed(now))["b"]
    assert mapping.fate is OperatorMatch.INCOMPATIBLE
    assert mapping.problem is not None
    assert (mapping.problem.code, mapping.problem.field) == ("window-changed", "b")
    assert mapping.problem.detail.startswith(changed)
    with pytest.raises(JobRejected):
        check_restorable(timed_manifest(before), timed(now), "job", allow_unmapped=True)
    check_restorable(timed_manifest(before, DONE), timed(now), "job")


def test_an_interval_may_become_narrower_and_durations_may_be_unknown_on_either_side() -> None:
    wide = timed_manifest({LOWER_BOUND: -5, UPPER_BOUND: 5})
    for now in ({LOWER_BOUND: 0, UPPER_BOUND: 4}, {LOWER_BOUND: -5, UPPER_BOUND: 5}, {}):
        check_restorable(wide, timed(now), "job")
    check_restorable(timed_manifest({}), timed({SESSION_GAP: 5}), "job")


# ---------------------------------------------------------------- keys and aggregates


def keyed_manifest(snapshot: SubtaskSnapshot, **changes: object) -> Manifest:
    savepoint = manifest({"a": [SNAPSHOT], "b": [snapshot]})
    changed = msgspec.structs.replace(savepoint.operators["b"], **changes)
    return msgspec.structs.replace(savepoint, operators=savepoint.operators | {"b": changed})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"keys": (("other",),)}, "keys-changed"),
        ({"keys": ()}, "keys-changed"),
        ({"keys": (("key",),), "aggregates": (("n", "Count()"),)}, "aggregates-changed"),
        ({"keys": (("key",),), "times": ("at",)}, "times-changed"),
    ],
)
def test_other_declarations_are_refused_if_there_is_keyed_state(changes: dict[str, object], code: str) -> None:
    """`tests/jobs/test_changed_steps.py` has the changes of whole jobs."""
    mapping = mapped(keyed_manifest(HELD, **changes), timed({}))["b"]
    assert mapping.problem is not None
    assert mapping.problem.code == code
    with pytest.raises(JobRejected):
        check_restorable(keyed_manifest(HELD, **changes), timed({}), "job", allow_unmapped=True)
    for snapshot in (SNAPSHOT, DONE):
        assert mapped(keyed_manifest(snapshot, **changes), timed({}))["b"].problem is None


def test_declarations_that_one_side_does_not_know_are_not_compared() -> None:
    assert mapped(keyed_manifest(HELD), timed({}))["b"].problem is None
    savepoint = keyed_manifest(HELD, keys=(("key",),), aggregates=(("n", "Count()"),), times=("at",))
    target = RestoreTarget.of(timed({}))
    old = msgspec.structs.replace(
        target,
        operators=tuple(msgspec.structs.replace(entry, aggregates=None, times=None) for entry in target.operators),
    )
    assert not mapping_report(savepoint, old, "job").all_problems


def test_the_report_declares_that_the_first_rows_decide_about_a_type() -> None:
    snapshot = SubtaskSnapshot(keyed={"k": (segment("1"),)}, key_types={"key": "int64"})
    note = "the first rows decide whether the type of its key 'key' (int64 in the checkpoint) is the same"
    assert note in mapped(keyed_manifest(snapshot), timed({}))["b"].reason
    assert note not in mapped(keyed_manifest(snapshot), keyed("int64"))["b"].reason


# ---------------------------------------------------------------- types of state columns


def summed(*types: str) -> JobGraph:
    to_b = replace(edge("a", "b", Partitioning.HASH), value_types=tuple(("windows.total:max", kind) for kind in types))
    return JobGraph((source("a"), operator("b"), sink("c")), (to_b, edge("b", "c")), max_parallelism=8)


def holding(before: str) -> Manifest:
    return manifest({"b": [SNAPSHOT, SubtaskSnapshot(value_types={"windows.total:max": before})]})


@pytest.mark.parametrize(("before", "now"), [("int64", "double"), ("timestamp[ms]", "int64"), ("int8", "uint64")])
def test_a_state_column_of_another_type_is_refused_before_the_start(before: str, now: str) -> None:
    mapping = mapped(holding(before), summed(now))["b"]
    assert mapping.fate is OperatorMatch.INCOMPATIBLE
    assert mapping.problem is not None
    assert (mapping.problem.code, mapping.problem.field) == ("state-type-changed", "b")
    text = f"state column 'windows.total:max' is {before} in the checkpoint and {now} in the job"
    assert mapping.problem.detail.startswith(text)
    with pytest.raises(JobRejected):
        check_restorable(holding(before), summed(now), "job", allow_unmapped=True)


@pytest.mark.parametrize(("before", "now", "common"), [("int32", "int64", "int64"), ("double", "float", "double")])
def test_a_widened_column_is_named_in_the_report(before: str, now: str, common: str) -> None:
    """A state column has a wider type on either side; a key column too, where that keeps its hash."""
    mapping = mapped(holding(before), summed(now))["b"]
    assert (mapping.fate, mapping.problem) == (OperatorMatch.MATCHED, None)
    text = f"state column 'windows.total:max' is {before} in the checkpoint and {now} in the job: widened to {common}"
    assert mapping.reason == f"its state is restored; {text}"
    narrow = manifest({"b": [SubtaskSnapshot(key_types={"key": "int32"})]})
    assert "key column 'key' is int32" in mapped(narrow, keyed("int64"))["b"].reason


def test_equal_and_unknown_types_of_state_columns_are_not_mentioned() -> None:
    for savepoint, graph in [
        (holding("int64"), summed("int64")),
        (holding("int64"), summed()),
        (manifest({"b": [HELD]}), summed("int8")),
    ]:
        mapping = mapped(savepoint, graph)["b"]
        assert (mapping.fate, mapping.reason) == (OperatorMatch.MATCHED, "its state is restored")


# ---------------------------------------------------------------- letting state go


def test_state_of_a_dropped_operator_may_be_let_go() -> None:
    savepoint = manifest({"a": [HELD], "gone": [HELD]})
    check_restorable(savepoint, chain(), "job", allow_unmapped=True)
    assert mapping_report(savepoint, RestoreTarget.of(chain()), "job").loses == ("gone",)


@pytest.mark.parametrize(
    ("savepoint", "code"),
    [
        (manifest({"gone": [HELD], "sink": [OWING]}), "unmapped-output"),
        (manifest({"gone": [HELD], "b": [DONE]}), "operator-before-finished"),
        (manifest({"gone": [HELD]}, max_parallelism=16), "max-parallelism-changed"),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_nothing_else_may(savepoint: Manifest, code: str, allow: bool) -> None:
    """Output that is owed would be lost; so it is refused first, before one is asked to let state go."""
    refusal = mapping_report(savepoint, RestoreTarget.of(chain()), "job").refusal(allow_unmapped=allow)
    assert refusal is not None
    assert refusal.code == code


# ---------------------------------------------------------------- loops


def test_records_that_were_on_their_way_round_need_a_loop_to_go_on_in() -> None:
    """S4-30: dropping them would lose them; also where the operator has stayed and the loop has not."""
    logged = SubtaskSnapshot(feedback=(segment("log"),))
    check_restorable(manifest({"h": [logged]}), looped(), "job")
    for uid in ("b", "gone"):
        with pytest.raises(JobRejected) as error:
            check_restorable(manifest({uid: [logged]}), chain(), "job")
        assert (error.value.code, error.value.field) == ("unmapped-state", uid)
        check_restorable(manifest({uid: [logged]}), chain(), "job", allow_unmapped=True)


def test_what_comes_round_does_not_precede_the_head() -> None:
    """A head may have finished, and a part of the body not."""
    check_restorable(manifest({"a": [DONE], "h": [DONE]}), looped(), "job")


# ---------------------------------------------------------------- rows in flight


def shuffled(sender: str = "a", partitioning: Partitioning = Partitioning.HASH) -> JobGraph:
    operators = (source(sender), operator("b"), sink("c"))
    return JobGraph(operators, (edge(sender, "b", partitioning), edge("b", "c")), max_parallelism=8)


def test_rows_in_flight_need_their_edge_to_be_replayed() -> None:
    """S4-48: dropping them would lose them, unless the user waives them."""
    savepoint = manifest({"b": [SubtaskSnapshot(in_flight=(rows_in_flight("a"),))]})
    check_restorable(savepoint, shuffled(), "job")
    for graph in (shuffled("other"), shuffled(partitioning=Partitioning.REBALANCE)):
        with pytest.raises(JobRejected, match="rows in flight to it from 'a'") as error:
            check_restorable(savepoint, graph, "job")
        assert (error.value.code, error.value.field) == ("unmapped-rows", "b")
        check_restorable(savepoint, graph, "job", allow_unmapped=True)


def test_rows_in_flight_with_other_keys_are_refused() -> None:
    other = rows_in_flight("a", keys=("other",))
    with pytest.raises(JobRejected, match="with the same output and keys"):
        check_restorable(manifest({"b": [SubtaskSnapshot(in_flight=(other,))]}), shuffled(), "job")


def test_rows_in_flight_of_another_output_are_refused() -> None:
    """A version may read the side output in place of the main output."""
    other = msgspec.structs.replace(rows_in_flight("a"), output="late")
    with pytest.raises(JobRejected, match="with the same output and keys"):
        check_restorable(manifest({"b": [SubtaskSnapshot(in_flight=(other,))]}), shuffled(), "job")


def test_rows_in_flight_to_a_step_that_has_a_build_side_now_are_refused() -> None:
    """They would be replayed before the build side is read."""
    operators = (source("a"), source("t", bounded=True), operator("b"), sink("c"))
    edges = (edge("a", "b", Partitioning.HASH), edge("t", "b", input=1, build=True), edge("b", "c"))
    with pytest.raises(JobRejected, match="not all inputs are partitioned by key"):
        check_restorable(
            manifest({"b": [SubtaskSnapshot(in_flight=(rows_in_flight("a"),))]}),
            JobGraph(operators, edges, max_parallelism=8),
            "job",
        )


def test_a_dropped_operator_with_rows_in_flight_has_state() -> None:
    savepoint = manifest({"gone": [SubtaskSnapshot(in_flight=(rows_in_flight("a"),))]})
    with pytest.raises(JobRejected) as error:
        check_restorable(savepoint, shuffled(), "job")
    assert (error.value.code, error.value.field) == ("unmapped-state", "gone")


def test_declarations_are_compared_for_the_sake_of_rows_in_flight() -> None:
    """A window of another size would not understand rows that were aggregated for the former one."""
    in_flight = SubtaskSnapshot(in_flight=(rows_in_flight("a"),))
    problem = mapped(keyed_manifest(in_flight, keys=(("key",),), aggregates=(("n", "Count()"),)), timed({}))[
        "b"
    ].problem
    assert problem is not None
    assert problem.code == "aggregates-changed"
