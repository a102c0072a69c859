"""Where boxes stand and edges run, whatever the graph."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from console.ui.graph.layers import Edge, crossings, layers, ranks
from console.ui.graph.layout import Box, BoxSizes, Layout, Point, layout
from tests.example_counts import examples

FLIGHTS = ["flights", "airlines", "join", "window", "parquet"]
FLIGHTS_EDGES = [("flights", "join"), ("airlines", "join"), ("join", "window"), ("window", "parquet")]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], list[Edge]]:
    """Acyclic graphs in topological order: every edge leads from an earlier name to a later one."""
    nodes = [f"n{number}" for number in range(draw(st.integers(1, 9)))]
    pairs = list(combinations(nodes, 2))
    return nodes, draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14)) if pairs else []


def segments(points: tuple[Point, ...]) -> list[tuple[Point, Point]]:
    return list(pairwise(points))


def test_ranks_are_longest_paths() -> None:
    assert ranks(FLIGHTS, FLIGHTS_EDGES) == {"flights": 0, "airlines": 0, "join": 1, "window": 2, "parquet": 3}


def test_a_source_stands_next_to_its_first_reader() -> None:
    edges = [("a", "b"), ("b", "c"), ("late", "c")]
    assert ranks(["a", "late", "b", "c"], edges)["late"] == 1


def test_a_crossing_that_can_be_avoided_is() -> None:
    nodes, edges = ["a", "b", "c", "d"], [("a", "d"), ("b", "c")]
    arrangement = layers(nodes, edges)
    links = [link for chain in arrangement.chains for link in pairwise(chain)]
    assert crossings((("a", "b"), ("c", "d")), links) == 1
    assert crossings(arrangement.order, links) == 0


def test_the_flights_job_reads_from_left_to_right() -> None:
    placed = layout(FLIGHTS, FLIGHTS_EDGES)
    lefts = [placed.boxes[uid].x for uid in ("flights", "join", "window", "parquet")]
    assert lefts == sorted(lefts)
    assert len(set(lefts)) == 4
    assert placed.boxes["flights"].x == placed.boxes["airlines"].x
    assert placed.boxes["flights"].y < placed.boxes["join"].y < placed.boxes["airlines"].y
    assert placed.boxes["join"].middle == placed.boxes["window"].middle == placed.boxes["parquet"].middle


def test_a_chain_is_a_straight_line_whatever_feeds_it() -> None:
    nodes = ["a", "b", "c", "d", "e", "f"]
    placed = layout(nodes, [("a", "c"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f")])
    assert [len(route.points) for route in placed.routes] == [4, 4, 2, 2, 2]


def test_a_job_of_five_ranks_fits_into_a_wide_page() -> None:
    nodes = ["a", "b", "c", "d", "e"]
    assert layout(nodes, list(pairwise(nodes))).width <= 1390


def test_an_empty_graph_has_an_empty_picture() -> None:
    placed = layout([], [])
    assert (placed.boxes, placed.routes, placed.columns) == ({}, (), ())


@given(graphs())
@settings(max_examples=examples(150), deadline=None)
def test_boxes_never_overlap_and_stay_inside(graph: tuple[list[str], list[Edge]]) -> None:
    placed = layout(*graph)
    for a, b in combinations(placed.boxes.values(), 2):
        assert a.right <= b.x or b.right <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
    for box in placed.boxes.values():
        assert box.x >= 0
        assert box.y >= 0
        assert box.right <= placed.width
        assert box.y + box.height <= placed.height


@given(graphs())
@settings(max_examples=examples(150), deadline=None)
def test_edges_join_their_boxes_at_right_angles_and_never_turn_back(graph: tuple[list[str], list[Edge]]) -> None:
    nodes, edges = graph
    placed = layout(nodes, edges)
    for (source, target), route in zip(edges, placed.routes, strict=True):
        assert route.points[0][0] == placed.boxes[source].right
        assert route.points[-1][0] == placed.boxes[target].x
        for (x1, y1), (x2, y2) in segments(route.points):
            assert (x1 == x2) != (y1 == y2) or (x1, y1) == (x2, y2)
            assert x2 >= x1


@given(graphs())
@settings(max_examples=examples(150), deadline=None)
def test_no_edge_runs_through_a_box_that_is_not_its_own(graph: tuple[list[str], list[Edge]]) -> None:
    nodes, edges = graph
    placed = layout(nodes, edges)
    for (source, target), route in zip(edges, placed.routes, strict=True):
        for uid, box in placed.boxes.items():
            if uid not in (source, target):
                assert not any(_touches(segment, box) for segment in segments(route.points)), (source, target, uid)


@given(graphs())
@settings(max_examples=examples(150), deadline=None)
def test_two_edges_never_share_a_vertical_run(graph: tuple[list[str], list[Edge]]) -> None:
    placed = layout(*graph)
    runs = [
        (number, a[0], *sorted((a[1], b[1])))
        for number, route in enumerate(placed.routes)
        for a, b in segments(route.points)
        if a[0] == b[0] and a[1] != b[1]
    ]
    for (edge, x, low, high), (other, x2, low2, high2) in combinations(runs, 2):
        assert edge == other or x != x2 or high <= low2 or high2 <= low


@given(graphs())
@settings(max_examples=examples(60), deadline=None)
def test_the_same_graph_always_gives_the_same_picture(graph: tuple[list[str], list[Edge]]) -> None:
    assert layout(*graph) == layout(*graph)


def test_vertical_runs_keep_their_distance_from_boxes_even_when_many_share_a_gap() -> None:
    sources, targets = [f"s{n}" for n in range(7)], [f"t{n}" for n in range(7)]
    placed = layout([*sources, *targets], [(s, t) for s in sources for t in targets])
    left, right = _gap(placed)
    tracks = {a[0] for route in placed.routes for a, b in segments(route.points) if a[0] == b[0]}
    assert min(tracks) > left
    assert max(tracks) < right


def _gap(placed: Layout) -> Point:
    return placed.columns[0][1], placed.columns[1][0]


def _touches(segment: tuple[Point, Point], box: Box) -> bool:
    (x1, y1), (x2, y2) = segment
    across = max(x1, x2) > box.x and min(x1, x2) < box.right
    return across and max(y1, y2) > box.y and min(y1, y2) < box.y + box.height


def test_the_metrics_are_those_of_the_picture() -> None:
    placed = layout(["a"], [], BoxSizes(box_width=100, box_height=50, margin=10, foot=0))
    assert (placed.width, placed.height) == (120, 70)
    assert placed.boxes["a"] == Box(10, 10, 100, 50)


# ---------------------------------------------------------------- loops


@given(graphs(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_what_leads_back_runs_around_all_boxes_and_moves_none(
    graph: tuple[list[str], list[Edge]], data: st.DataObject
) -> None:
    nodes, edges = graph
    back = [(b, a) for a, b in edges if data.draw(st.booleans())]
    plain, placed = layout(nodes, edges), layout(nodes, edges, back=back)
    assert (placed.boxes, placed.routes) == (plain.boxes, plain.routes)
    levels = [route.points[2][1] for route in placed.back]
    assert len(set(levels)) == len(levels), "each has a run of its own"
    for (source, target), route in zip(back, placed.back, strict=True):
        assert route.points[0][0] == placed.boxes[source].right
        assert route.points[-1][0] == placed.boxes[target].x
        assert all(0 <= x <= placed.width and 0 <= y <= placed.height for x, y in (*route.points, route.label))
        for box in placed.boxes.values():
            assert not any(_touches(segment, box) for segment in segments(route.points))
