"""Graphs: what is refused, and how they unfold."""

from collections.abc import Callable

import pytest

from runtime.core.graph import EdgeSpec, JobGraph, Partitioning
from runtime.core.ids import ChannelId, OperatorId
from runtime.errors import JobRejected
from tests.core.builders import chain, edge, operator, sink, source, subtask

AB = (edge("a", "b"),)


@pytest.mark.parametrize(
    ("make", "code", "field"),
    [
        (lambda: JobGraph((source("a"), sink("b")), AB, max_parallelism=0), "bad-max-parallelism", "max_parallelism"),
        (lambda: JobGraph((source("a b"), sink("b")), AB), "bad-uid", "a b"),
        (lambda: JobGraph((source("a"), source("a"), sink("b")), AB), "duplicate-uid", "a"),
        (lambda: JobGraph((source("a", 9), sink("b")), AB, max_parallelism=8), "bad-parallelism", "a"),
        (lambda: JobGraph((source("a"), sink("b")), (*AB, edge("a", "x"))), "unknown-operator", "x"),
        (lambda: JobGraph((source("a", 2), sink("b")), (edge("a", "b", Partitioning.FORWARD),)), "bad-forward", "b"),
        (lambda: JobGraph((source("a"), sink("b")), (_keyless(),)), "bad-keys", "b"),
        (lambda: JobGraph((source("a"), sink("b"), operator("c")), (*AB, edge("c", "b"))), "bad-input", "c"),
        (lambda: JobGraph((source("a"), operator("b")), AB), "dangling-output", "b"),
        (lambda: JobGraph((), ()), "no-source", "job"),
        (
            lambda: JobGraph((source("a"), operator("b"), operator("c"), sink("d")), (*AB, *_loop(), edge("c", "d"))),
            "cycle",
            "b",
        ),
    ],
)
def test_a_bad_graph_is_refused_by_the_name_at_fault(make: Callable[[], JobGraph], code: str, field: str) -> None:
    """S4-07, S4-29: also a cycle, on which aligned barriers would wait for themselves."""
    with pytest.raises(JobRejected) as refused:
        make()
    assert (refused.value.code, refused.value.field) == (code, field)


def test_a_build_side_that_never_ends_is_refused() -> None:
    """The table of a join is bounded."""
    with pytest.raises(JobRejected) as refused:
        JobGraph((source("a"), source("t"), operator("j"), sink("k")), _joined("a", "t", "j", "k"))
    assert (refused.value.code, refused.value.field) == ("unbounded-build-side", "j")


def test_a_source_on_both_sides_of_a_join_is_refused_since_it_would_wait_for_itself() -> None:
    with pytest.raises(JobRejected) as refused:
        JobGraph((source("a", bounded=True), operator("j"), sink("k")), _joined("a", "a", "j", "k"))
    assert (refused.value.code, refused.value.field) == ("build-side-deadlock", "a")


def test_two_joins_that_need_two_sources_in_opposite_orders_are_refused() -> None:
    operators = (source("a", bounded=True), source("b", bounded=True), operator("m"), operator("i"), operator("j"))
    edges = (edge("b", "m"), *_joined("a", "m", "i", "k"), *_joined("m", "a", "j", "l"))
    with pytest.raises(JobRejected, match="wait for itself") as refused:
        JobGraph((*operators, sink("k"), sink("l")), edges)
    assert refused.value.code == "build-side-deadlock"


def test_one_table_may_serve_two_joins_in_a_row() -> None:
    operators = (source("a"), source("t", bounded=True), operator("i"), operator("j"), sink("k"))
    graph = JobGraph(operators, (*_joined("a", "t", "i", "j"), edge("t", "j", input=1, build=True), edge("j", "k")))
    assert graph.operators[-1].uid == "k"


def _joined(probe: str, build: str, join: str, after: str) -> tuple[EdgeSpec, ...]:
    return edge(probe, join), edge(build, join, input=1, build=True), edge(join, after)


def _keyless() -> EdgeSpec:
    return EdgeSpec(source=OperatorId("a"), target=OperatorId("b"), input=0, partitioning=Partitioning.HASH)


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
    first = {"uid": "a", "name": "a", "role": "source", "parallelism": 2, "bounded": False, "guarantee": "exactly-once"}
    assert drawn["operators"][0] == first
    assert drawn["edges"][1] == {
        "source": "b",
        "target": "c",
        "input": 0,
        "partitioning": "rebalance",
        "keys": [],
        "build": False,
    }
