"""Back-edges and components, against a library for graphs."""

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.job.loops import Edge, back_edges, components
from tests.example_counts import examples

VERTICES = [f"v{number}" for number in range(8)]
EDGES = st.lists(st.tuples(st.sampled_from(VERTICES), st.sampled_from(VERTICES)), max_size=24)


@pytest.mark.parametrize(
    ("edges", "back"),
    [
        ([], ()),
        ([("a", "b"), ("b", "c"), ("a", "c")], ()),
        ([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")], (2,)),
        ([("a", "b"), ("b", "b"), ("b", "c")], (1,)),
        ([("a", "b"), ("b", "c"), ("c", "c"), ("c", "d"), ("d", "b")], (2, 4)),  # a loop in a loop
        ([("a", "b"), ("b", "c"), ("c", "d"), ("c", "b"), ("d", "c")], (3, 4)),  # two that share an edge's end
        ([("b", "c"), ("c", "b")], (1,)),  # nothing leads to it from outside
    ],
)
def test_an_edge_to_a_vertex_on_the_way_closes_a_cycle(edges: list[Edge], back: tuple[int, ...]) -> None:
    """S4-31."""
    assert back_edges(["a", "b", "c", "d"], edges) == back


@given(EDGES)
@settings(max_examples=examples(300), deadline=None)
def test_without_its_back_edges_a_graph_is_acyclic_and_holds_every_vertex(edges: list[Edge]) -> None:
    """S4-31, S4-32: and each of them lies on a cycle."""
    back = back_edges(VERTICES, edges)
    remainder = nx.MultiDiGraph([edge for index, edge in enumerate(edges) if index not in back])
    remainder.add_nodes_from(VERTICES)
    assert nx.is_directed_acyclic_graph(remainder)
    assert set(remainder) == set(VERTICES)
    graph = nx.DiGraph(edges)
    assert all(nx.has_path(graph, target, source) for source, target in (edges[index] for index in back))


@given(EDGES)
@settings(max_examples=examples(300), deadline=None)
def test_components_are_the_strongly_connected_ones(edges: list[Edge]) -> None:
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(VERTICES)
    groups: dict[str, set[str]] = {}
    for vertex, root in components(VERTICES, edges).items():
        groups.setdefault(root, set()).add(vertex)
    assert sorted(map(sorted, groups.values())) == sorted(map(sorted, nx.strongly_connected_components(graph)))


def test_a_long_chain_is_no_deep_recursion() -> None:
    vertices = [f"v{number}" for number in range(5_000)]
    chain = list(itertools.pairwise(vertices))
    assert back_edges(vertices, [*chain, (vertices[-1], vertices[0])]) == (4_999,)
    assert len(set(components(vertices, chain).values())) == 5_000
