"""The job graph as values: numbers, finished operators, the weir line, and silence."""

from datetime import UTC, datetime
from typing import Any

import pytest

from console.metrics import live
from console.metrics.live import CheckpointLive
from console.ui.graph.line import weir_line
from console.ui.graph.picture import GraphPicture, NodePicture, draw
from tests.console import graphs
from tests.console.ui import rows

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
COLUMNS = ((20.0, 232.0), (380.0, 592.0), (740.0, 952.0))


def picture(numbers: dict[str, Any] | None) -> GraphPicture:
    return draw(rows.GRAPH, live.parse(numbers, NOW), NOW)


def node(drawn: GraphPicture, uid: str) -> NodePicture:
    return next(node for node in drawn.nodes if node.uid == uid)


def test_a_node_carries_its_numbers() -> None:
    flights = node(picture(rows.live()), "flights")
    assert (str(flights.records_out), str(flights.rate_out)) == ("10 M", "84 k/s")
    assert str(flights.watermark) == "2013-06-12 08:00"
    assert (str(flights.busy), str(flights.backpressured)) == ("42 %", "4 %")
    assert flights.busy_width == pytest.approx(0.42 * flights.bar_width, abs=0.1)


def test_the_load_tints_the_whole_node() -> None:
    """A tint as wide as the load ended in the middle of words."""
    drawn = picture(rows.live())
    assert [node(drawn, uid).tint for uid in ("flights", "prepared", "join", "airlines")] == [
        "busy-tint load-2", "busy-tint load-1", "busy-tint load-3", "",
    ]  # fmt: skip
    numbers = rows.live()
    numbers["operators"]["flights"] |= {"busy": 0.1, "backpressured": 0.9}
    assert node(picture(numbers), "flights").tint == "pressed-tint load-4"
    assert node(picture(None), "flights").tint == ""


def test_a_bar_is_never_longer_than_its_track() -> None:
    numbers = rows.live()
    numbers["operators"]["join"] |= {"busy": 0.9, "backpressured": 0.9}
    join = node(picture(numbers), "join")
    assert join.busy_width + join.backpressured_width <= join.bar_width + 0.1


def test_a_finished_operator_is_marked_and_its_edges_are_still() -> None:
    drawn = picture(rows.live())
    assert node(drawn, "airlines").finished
    edge = next(edge for edge in drawn.edges if edge.source == "airlines")
    assert edge.rate is None
    assert not edge.flowing


def test_edges_grow_with_their_rate_and_say_how_they_deal() -> None:
    edges = {edge.source: edge for edge in picture(rows.live()).edges}
    assert edges["flights"].width == edges["prepared"].width > edges["window"].width > edges["airlines"].width
    assert edges["join"].about == "join airlines to sessions: hash by carrier, flight, 84 k/s"
    assert edges["airlines"].about == "airlines to join airlines: broadcast, read first"


def part_of_graph(*uids: str) -> dict[str, Any]:
    edges = [edge for edge in rows.GRAPH["edges"] if {edge["source"], edge["target"]} <= set(uids)]
    return rows.GRAPH | {"operators": [o for o in rows.GRAPH["operators"] if o["uid"] in uids], "edges": edges}


def test_a_picture_of_three_ranks_leaves_room_for_the_inspector() -> None:
    """A wider picture beside it would shrink, and its texts with it."""
    report = live.parse(rows.live(), NOW)
    assert draw(part_of_graph("join", "window", "parquet"), report, NOW).leaves_room
    assert not draw(part_of_graph("prepared", "join", "window", "parquet"), report, NOW).leaves_room
    assert draw(rows.GRAPH, report, NOW, is_compact=True).leaves_room


def test_without_numbers_the_same_picture_is_drawn_in_silence() -> None:
    silent, loud = picture(None), picture(rows.live())
    assert [n.box for n in silent.nodes] == [n.box for n in loud.nodes]
    assert silent.line is None
    assert not any(n.flowing or n.state for n in silent.nodes)


def test_numbers_of_another_shape_are_left_out_rather_than_breaking_the_page() -> None:
    assert live.parse({"operators": {"flights": {"records_in": "many"}}}, NOW) == live.NO_METRICS


def test_an_operator_that_reports_little_has_defaults() -> None:
    drawn = picture({"operators": {"flights": {"state": "deploying"}}})
    assert node(drawn, "flights").state == "deploying"
    assert node(drawn, "parquet").state == ""


def test_the_description_says_what_the_picture_shows() -> None:
    about = picture(rows.live()).about
    assert "6 operators: flights, prepared, airlines, join airlines, sessions, parquet" in about
    assert "Finished: airlines." in about
    assert "6 of 10 subtasks have acknowledged checkpoint 214." in about


def test_the_weir_line_counts_only_subtasks_that_must_acknowledge() -> None:
    drawn = picture(rows.live(acknowledged=2))
    line = drawn.line
    assert line is not None
    assert node(drawn, "flights").box.right < line.x < node(drawn, "join").box.x
    assert line.caption == "checkpoint 214, 2 of 10 acknowledged"


@pytest.mark.parametrize(
    ("acknowledged", "low", "high"),
    [(0, 0, 20), (1, 20, 232), (2, 232, 380), (4, 592, 740), (6, 952, 980), (9, 952, 980)],
)
def test_the_weir_line_has_that_many_subtasks_behind_it(acknowledged: int, low: float, high: float) -> None:
    line = weir_line(CheckpointLive(number=7, acknowledged=acknowledged, subtasks=6), (2, 2, 2), COLUMNS, 200)
    assert low <= line.x <= high


def test_the_weir_line_only_moves_downstream() -> None:
    places = [
        weir_line(CheckpointLive(number=7, acknowledged=n, subtasks=12), (2, 0, 10), COLUMNS, 200).x for n in range(13)
    ]
    assert places == sorted(places)
    assert len(set(places)) == 13


@pytest.mark.parametrize("acknowledged", range(11))
def test_the_weir_line_crosses_no_label_of_an_edge(acknowledged: int) -> None:
    drawn = picture(rows.live(acknowledged))
    assert drawn.line is not None
    for edge in drawn.edges:
        assert abs(edge.label[0] - drawn.line.x) > 3.5 * len(edge.strategy), edge.about


def test_the_weir_line_stands_at_the_nearer_side_of_labels_that_overlap() -> None:
    def x(acknowledged: int) -> float:
        labels = [(280.0, 330.0), (320.0, 350.0)]
        under_way = CheckpointLive(number=7, acknowledged=acknowledged, subtasks=60)
        return weir_line(under_way, (20, 20, 20), COLUMNS, 200, labels).x

    assert [x(20), x(21)] == [273.0, 357.0]


def test_the_caption_stays_inside_the_picture() -> None:
    def anchor(acknowledged: int) -> str:
        return weir_line(
            CheckpointLive(number=7, acknowledged=acknowledged, subtasks=6), (2, 2, 2), COLUMNS, 200
        ).anchor

    assert (anchor(0), anchor(3), anchor(6)) == ("start", "middle", "end")


def test_a_checkpoint_without_subtasks_to_wait_for_stands_at_the_left() -> None:
    line = weir_line(CheckpointLive(number=7, acknowledged=0, subtasks=0), (0, 0, 0), COLUMNS, 200)
    assert line.x < COLUMNS[0][0]


def test_long_names_are_cut_in_the_box_and_whole_in_the_table() -> None:
    graph = {
        **rows.GRAPH,
        "operators": [{**o, "name": o["name"] + " of everything there is"} for o in rows.GRAPH["operators"]],
    }
    drawn = draw(graph, live.NO_METRICS, NOW)
    assert all(len(n.short_name) <= 20 and n.short_name.endswith("…") for n in drawn.nodes)
    assert drawn.nodes[0].name == "flights of everything there is"


def test_a_loop_is_drawn_with_a_line_that_leads_back() -> None:
    operators = [
        graphs.operator(uid, uid, role, 1)
        for uid, role in (("in", "source"), ("loop", "operator"), ("step", "operator"), ("out", "sink"))
    ]
    edges = [
        graphs.edge(source, target, feedback=back)
        for source, target, back in (
            ("in", "loop", False), ("loop", "step", False), ("step", "loop", True), ("step", "out", False)
        )
    ]  # fmt: skip
    drawn = draw({"operators": operators, "edges": edges}, live.NO_METRICS, NOW)
    assert [(edge.source, edge.target) for edge in drawn.edges][-1] == ("step", "loop")
    assert drawn.edges[-1].about == "step to loop: forward, back into the loop"
    assert drawn.edges[-1].label[1] > max(node.box.y + node.box.height for node in drawn.nodes)
    assert node(drawn, "step").sends_to == (("loop", "forward, back into the loop"), ("out", "forward"))
