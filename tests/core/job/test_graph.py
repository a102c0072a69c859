"""Graphs: what is refused, and how they unfold."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, OperatorId
from runtime.errors import JobRejected
from tests.core.builders import back, chain, edge, looped, operator, sink, source, subtask

AB = (edge("a", "b"),)
SELF = (*AB, edge("b", "c"))
FED = ("bad-input", "b")
NO_LOOP = ("not-a-loop", "b")


@pytest.mark.parametrize(
    ("make", "code", "field"),
    [
        (lambda: JobGraph((source("a"), sink("b")), AB, max_parallelism=0), "bad-max-parallelism", "max_parallelism"),
        (lambda: JobGraph((source("a b"), sink("b")), AB), "bad-uid", "a b"),
        (lambda: JobGraph((source("a"), source("a"), sink("b")), AB), "duplicate-uid", "a"),
        (lambda: JobGraph((source("a", 9), sink("b")), AB, max_parallelism=8), "bad-parallelism", "a"),
        (lambda: JobGraph((source("a"), sink("b")), (*AB, edge("a", "x"))), "unknown-operator", "x"),
        (lambda: JobGraph((source("a", 2), sink("b")), (edge("a", "b", Partitioning.FORWARD),)), "bad-forward", "b"),
        (lambda: JobGraph((source("a"), sink("b")), (_keyless(Partitioning.HASH),)), "bad-keys", "b"),
        (lambda: JobGraph((source("a"), sink("b")), (_keyless(Partitioning.CUSTOM),)), "bad-keys", "b"),
        (lambda: JobGraph((source("a"), sink("b"), operator("c")), (*AB, edge("c", "b"))), "bad-input", "c"),
        (lambda: JobGraph((source("a"), operator("b")), AB), "dangling-output", "b"),
        (lambda: JobGraph((), ()), "no-source", "job"),
        (
            lambda: JobGraph((source("a"), operator("b"), operator("c"), sink("d")), (*AB, *_loop(), edge("c", "d"))),
            "cycle",
            "b",
        ),
        (lambda: JobGraph((source("a"), operator("b"), sink("c")), (*AB, edge("b", "c"), back("a", "b"))), *NO_LOOP),
        (lambda: JobGraph((source("a"), operator("b"), sink("c")), (*SELF, back("b", "b", 0))), "bad-feedback", "b"),
        (
            lambda: JobGraph((source("a"), operator("b"), sink("c")), (edge("a", "c"), edge("b", "c"), back("b", "b"))),
            *FED,
        ),
        (lambda: JobGraph((source("a"), operator("b"), sink("c")), (*SELF, back("b", "a"))), "bad-input", "a"),
    ],
)
def test_a_bad_graph_is_refused_by_the_name_at_fault(make: Callable[[], JobGraph], code: str, field: str) -> None:
    """S4-07, S4-29: also a cycle, on which aligned barriers would wait for themselves."""
    with pytest.raises(JobRejected) as error:
        make()
    assert (error.value.code, error.value.field) == (code, field)


def test_a_build_side_that_never_ends_is_refused() -> None:
    """The table of a join is bounded."""
    with pytest.raises(JobRejected) as error:
        JobGraph((source("a"), source("t"), operator("j"), sink("k")), _joined("a", "t", "j", "k"))
    assert (error.value.code, error.value.field) == ("unbounded-build-side", "j")


def test_a_source_on_both_sides_of_a_join_is_refused_since_it_would_wait_for_itself() -> None:
    with pytest.raises(JobRejected) as error:
        JobGraph((source("a", bounded=True), operator("j"), sink("k")), _joined("a", "a", "j", "k"))
    assert (error.value.code, error.value.field) == ("build-side-deadlock", "a")


def test_two_joins_that_need_two_sources_in_opposite_orders_are_refused() -> None:
    operators = (source("a", bounded=True), source("b", bounded=True), operator("m"), operator("i"), operator("j"))
    edges = (edge("b", "m"), *_joined("a", "m", "i", "k"), *_joined("m", "a", "j", "l"))
    with pytest.raises(JobRejected, match="wait for itself") as error:
        JobGraph((*operators, sink("k"), sink("l")), edges)
    assert error.value.code == "build-side-deadlock"


def test_one_table_may_serve_two_joins_in_a_row() -> None:
    operators = (source("a"), source("t", bounded=True), operator("i"), operator("j"), sink("k"))
    graph = JobGraph(operators, (*_joined("a", "t", "i", "j"), edge("t", "j", input=1, build=True), edge("j", "k")))
    assert graph.operators[-1].uid == "k"


def _joined(probe: str, build: str, join: str, after: str) -> tuple[EdgeSpec, ...]:
    return edge(probe, join), edge(build, join, input=1, build=True), edge(join, after)


def _keyless(partitioning: Partitioning) -> EdgeSpec:
    return EdgeSpec(source=OperatorId("a"), target=OperatorId("b"), input=0, partitioning=partitioning)


def _loop() -> tuple[EdgeSpec, EdgeSpec]:
    return edge("b", "c"), edge("c", "b")


def test_operators_stand_in_topological_order_whatever_the_order_of_declaration() -> None:
    """S4-05."""
    graph = JobGraph((sink("c"), operator("b"), source("a")), (edge("b", "c"), edge("a", "b")))
    assert [o.uid for o in graph.operators] == ["a", "b", "c"]
    assert graph.predecessors(OperatorId("b")) == ("a",)


def test_a_forward_edge_joins_equal_indices_and_others_join_all() -> None:
    graph = JobGraph(
        (source("a", 2), operator("b", 2), sink("c", 3)),
        (edge("a", "b", Partitioning.FORWARD), edge("b", "c", Partitioning.HASH)),
    )
    assert graph.parallelism == 3
    assert graph.outputs[subtask("a/1")] == (ChannelId(0, 1, 1),)
    assert graph.inputs[subtask("c/2")] == (ChannelId(1, 0, 2), ChannelId(1, 1, 2))
    assert graph.source(ChannelId(1, 1, 2)) == subtask("b/1")
    assert graph.target(ChannelId(1, 1, 2)) == subtask("c/2")
    assert graph.input_of(ChannelId(1, 1, 2)) == 0


def test_the_console_gets_the_graph_as_json() -> None:
    """S4-05."""
    drawn = chain(2).to_json()
    assert drawn["parallelism"] == 2
    assert drawn["operators"][0] == {
        "uid": "a",
        "name": "a",
        "role": "source",
        "parallelism": 2,
        "bounded": False,
        "guarantee": "exactly-once",
        "commits": False,
        "durations": {},
        "aggregates": [],
        "times": [],
        "exclusive": False,
        "dead_letters": "",
    }
    assert [entry["commits"] for entry in drawn["operators"]] == [False, False, True]
    assert drawn["edges"][1] == {
        "source": "b",
        "target": "c",
        "input": 0,
        "partitioning": "rebalance",
        "keys": [],
        "build": False,
        "feedback": False,
        "key_types": [],
        "value_types": [],
        "output": "",
    }
    assert [edge["feedback"] for edge in looped().to_json()["edges"]] == [False, False, True, False]


# ---------------------------------------------------------------- loops


def test_a_graph_that_another_thread_reads_is_pickled_whole() -> None:
    """A launcher pickles the job on its own thread, while the job master asks the graph for subtasks and channels."""

    class Name(str):
        def __reduce__(self) -> tuple[Any, ...]:
            assert graph.subtasks  # as another thread would, at this moment
            return str, (str(self),)

    graph = JobGraph((source("numbers"), sink("out")), (edge("numbers", "out"),))
    named = replace(graph.operators[0], name=Name("Numbers"))
    graph = replace(graph, operators=(named, graph.operators[1]))
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_a_loop_is_closed_by_feedback_edges_and_the_order_goes_by_the_others() -> None:
    """S4-32: without them it is a graph like any other."""
    graph = looped()
    assert [o.uid for o in graph.operators] == ["a", "h", "b", "c"]
    assert graph.predecessors(OperatorId("h")) == ("a",)
    assert [graph.is_feedback(channel) for channel in graph.inputs[subtask("h/0")]] == [False, True]
    assert graph.loops == {uid: frozenset({"h", "b"}) for uid in ("h", "b")}
    assert chain().loops == {}


def test_a_cycle_without_a_feedback_edge_says_how_to_close_it() -> None:
    with pytest.raises(JobRejected, match="the edge c -> b closes a cycle; close it with iterate"):
        JobGraph((source("a"), operator("b"), operator("c"), sink("d")), (*AB, *_loop(), edge("c", "d")))


@pytest.mark.parametrize(
    ("join", "build"),
    [("j", "h"), ("h", "t")],  # a table that comes out of the loop it is needed in; a table of the head itself
)
def test_a_build_side_that_a_loop_would_wait_for_is_refused(join: str, build: str) -> None:
    operators = (source("a", bounded=True), source("t", bounded=True), operator("h"), operator("j"), sink("c"))
    edges = (edge("a", "h"), edge("t", "j", input=3), edge("h", "j"), back("j", "h"), edge("j", "c"))
    with pytest.raises(JobRejected, match="would have to end before the loop around it goes on") as error:
        JobGraph(operators, (*edges, edge(build, join, input=2, build=True)))
    assert (error.value.code, error.value.field) == ("build-side-deadlock", join)


def test_an_unbounded_source_of_a_loop_is_one_of_what_comes_out_of_it() -> None:
    operators = (source("a", bounded=True), source("s"), operator("h"), operator("b"), source("p"), operator("j"))
    loop = (
        edge("a", "h"),
        edge("h", "b"),
        edge("s", "b", input=1),
        back("b", "h"),
        edge("h", "j", input=1, build=True),
    )
    with pytest.raises(JobRejected, match="its build side would never end: s is unbounded"):
        JobGraph((*operators, sink("k")), (*loop, edge("p", "j"), edge("j", "k")))
