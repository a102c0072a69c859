"""The layout of large graphs: chains are stacked, and nothing overlaps, whatever the graph."""

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.ui.graph.compact import ROW, chains, compact_layout
from console.ui.graph.layers import Edge
from console.ui.graph.layout import Box, Point
from tests.console.ui import numbers
from tests.console.ui.graph.test_layout import graphs
from tests.example_counts import examples


def ends(graph: dict[str, Any]) -> tuple[list[str], list[Edge]]:
    return [o["uid"] for o in graph["operators"]], [(e["source"], e["target"]) for e in graph["edges"]]


def test_a_chain_ends_where_the_flow_forks_joins_or_loops() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("c", "e"), ("d", "f"), ("e", "f"), ("f", "g")]
    assert chains("abcdefg", edges) == [("a", "b", "c"), ("d",), ("e",), ("f", "g")]
    long = [f"n{number}" for number in range(15)]
    assert [len(chain) for chain in chains(long, list(pairwise(long)))] == [5, 5, 5]
    assert chains("abc", [("a", "b"), ("b", "c")], [("b", "b")]) == [("a",), ("b",), ("c",)]


def test_a_graph_of_30_operators_fits_into_a_wide_page() -> None:
    """S2: compact nodes, and collapse of chains."""
    nodes, edges = ends(numbers.wide_graph())
    placed = compact_layout(nodes, edges)
    assert placed.width <= 1390
    assert len(placed.columns) == 6
    rows = [placed.boxes[uid] for uid in ("sessions", "basket-features", "model-score", "score-alerts")]
    assert {(box.x, box.height) for box in rows} == {(rows[0].x, ROW)}
    assert [below.y - above.y for above, below in pairwise(rows)] == [ROW] * 3


@given(graphs(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_no_rows_overlap_and_no_edge_runs_through_a_row(
    graph: tuple[list[str], list[Edge]], data: st.DataObject
) -> None:
    nodes, edges = graph
    back = [(b, a) for a, b in edges if data.draw(st.booleans())][:2]
    placed = compact_layout(nodes, edges, back)
    assert list(placed.boxes) == [node for chain in chains(nodes, edges, back) for node in chain]
    for a, b in combinations(placed.boxes.values(), 2):
        assert a.right <= b.x or b.right <= a.x or a.y + ROW <= b.y or b.y + ROW <= a.y
    for (source, target), route in zip([*edges, *back], [*placed.routes, *placed.back], strict=True):
        if route.points:
            assert route.points[0][0] == placed.boxes[source].right
            assert _is_beside(route.points[0], placed.boxes[source]) or (source, target) in back
            assert _is_beside(route.points[-1], placed.boxes[target]) or (source, target) in back
        for uid, box in placed.boxes.items():
            if uid not in (source, target):
                assert not any(_crosses(part, box) for part in pairwise(route.points)), (source, target, uid)


@pytest.mark.parametrize("count", [12, 40])
def test_a_graph_of_any_depth_has_rows_wide_enough_for_names(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    edges = [*pairwise(nodes), *zip(nodes, nodes[2:], strict=False)]  # no chains
    assert min(box.width for box in compact_layout(nodes, edges).boxes.values()) >= 112


def _is_beside(point: Point, box: Box) -> bool:
    return box.y <= point[1] <= box.y + box.height


def _crosses(part: tuple[Point, Point], box: Box) -> bool:
    (x1, y1), (x2, y2) = part
    across = max(x1, x2) > box.x and min(x1, x2) < box.right
    return across and max(y1, y2) > box.y and min(y1, y2) < box.y + box.height
