"""The job graph as values for a template: positions of texts and widths of bars, without markup.

Positions depend on the version's graph alone and never change while a job runs; numbers and classes come from the live
metrics. Without live metrics the same picture has no numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, log10
from types import MappingProxyType
from typing import Any

from console import formats
from console.checkpoints.models import noun
from console.formats import Quantity
from console.health.findings import Finding
from console.metrics.live import Live, OperatorLive, StageLive
from console.ui.graph.compact import ROOM_BESIDE, ROW, compact_layout
from console.ui.graph.layers import Edge
from console.ui.graph.layout import Box, Layout, Point, Route, layout
from console.ui.graph.line import WeirLine, weir_line
from console.ui.graph.marks import OperatorMark, marks
from runtime.core.job.settings import ExecutionMode

_PAD = 12.0
_LARGE_BREADTH, _NAME_BREADTH = 13.5, 17.5  #: maximum breadth of a name in large letters, and in small letters
_BREADTH, _COUNT_ROOM = 8.4, 46.0  #: in a compact graph, pixels of a breadth of 1, and those beside the name
_DIGIT_ROOM = 8.0  #: more beside the name, for each further digit of the parallelism
_SMALL_BREADTH = 7.4  #: of small letters
_MARK_ROOM, _ROW_MARK_ROOM = 20.0, 36.0  #: pixels beside the word of a mark
_BREADTHS = {**dict.fromkeys("mwMW@%", 1.6), **dict.fromkeys("fijlrt1.,-' ", 0.7)}  #: other letters are about 1
_MIN_EDGE_WIDTH, _MAX_EDGE_WIDTH = 1.5, 7.0
_TURN = 6.0  #: radius of an edge's corner


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePicture:
    """An operator in the picture and in the table. `state` is '' while unknown."""

    uid: str
    name: str
    short_name: str
    long: bool  #: its name needs smaller letters
    role: str
    bounded: bool
    parallelism: int
    box: Box
    state: str
    mark: OperatorMark | None  #: of a finding of health
    numbers: OperatorLive | None
    flowing: bool
    stage: StageLive | None  #: its stage in the plan of a run in BATCH
    records_in: Quantity
    records_out: Quantity
    rate_in: Quantity
    rate_out: Quantity
    watermark: Quantity
    skew: float | None  #: records of the busiest subtask, divided by the mean
    busy_width: float
    backpressured_width: float
    sends_to: tuple[tuple[str, str], ...]  #: (name of the reader, strategy)

    @property
    def inner_right(self) -> float:
        return self.box.width - _PAD

    @property
    def count_x(self) -> float:
        """The right edge of counts; rates end at the right of the box."""
        return self.box.width * 0.56

    @property
    def bar_width(self) -> float:
        return self.box.width - 2 * _PAD

    @property
    def pressed_x(self) -> float:
        return _PAD + self.busy_width

    @property
    def tint(self) -> str:
        """Classes of the tint of the whole node: its larger share of time, in steps of a quarter. "" without any."""
        kind = "pressed-tint" if self.backpressured_width > self.busy_width else "busy-tint"
        steps = ceil(4 * max(self.busy_width, self.backpressured_width) / self.bar_width)
        return f"{kind} load-{steps}" if steps else ""

    @property
    def busy(self) -> Quantity:
        return formats.percent(self.numbers.busy if self.numbers and self.flowing else None)

    @property
    def backpressured(self) -> Quantity:
        return formats.percent(self.numbers.backpressured if self.numbers and self.flowing else None)

    @property
    def tasks_width(self) -> float:
        """Width of the bar of finished tasks of its stage."""
        if self.stage is None or not self.stage.tasks:
            return 0.0
        return round(_share(self.stage.tasks_done / self.stage.tasks) * self.bar_width, 1)

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def mark_word(self) -> str:
        """The word of the mark, cut to the width of the node."""
        if self.mark is None:
            return ""
        is_row = self.box.height <= ROW
        room = self.box.width - (_ROW_MARK_ROOM if is_row else _MARK_ROOM)
        return _short(self.mark.word, room / (_SMALL_BREADTH if is_row else _BREADTH))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePicture:
    source: str
    target: str
    strategy: str
    path: str
    head: str
    width: float
    label: Point
    rate: Quantity | None
    flowing: bool
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPicture:
    """`is_compact`: operators are rows of stacked chains, and inner edges of chains are not drawn."""

    width: float
    height: float
    ranks: int  #: from left to right
    is_batch: bool
    is_compact: bool
    nodes: tuple[NodePicture, ...]
    edges: tuple[EdgePicture, ...]
    line: WeirLine | None
    about: str

    @property
    def leaves_room(self) -> bool:
        """Whether the inspector fits beside the picture on a wide page. A picture that shrinks has illegible texts."""
        return self.width <= ROOM_BESIDE


def draw(
    graph: Mapping[str, Any],
    live: Live,
    now: datetime,
    title: str = "Job graph",
    *,
    findings: Iterable[Finding] = (),
    skew: Mapping[str, float] = MappingProxyType({}),
    is_compact: bool = False,
    room: float | None = None,
) -> GraphPicture:
    """Draws `JobGraph.to_json()` with the metrics `live` and `skew`, and marks the operators that `findings` name.

    `room`: of a compact graph, the width of a narrow page.
    """
    operators = graph["operators"]
    regular = [edge for edge in graph["edges"] if not edge["feedback"]]
    back = [edge for edge in graph["edges"] if edge["feedback"]]
    uids = [operator["uid"] for operator in operators]
    ahead, behind = _ends(regular), _ends(back)
    placed = compact_layout(uids, ahead, behind, room) if is_compact else layout(uids, ahead, back=behind)
    ways = zip([*regular, *back], [*placed.routes, *placed.back], strict=True)
    marked = marks(findings, {operator["uid"]: operator["name"] for operator in operators}, skew)
    nodes = tuple(
        _node(operator, graph, placed, live, marked.get(operator["uid"]), skew.get(operator["uid"]), now)
        for operator in operators
    )
    by_uid = {node.uid: node for node in nodes}
    drawn = tuple(_edge(edge, route, by_uid, live) for edge, route in ways if route.points)
    return GraphPicture(
        width=placed.width,
        height=placed.height,
        ranks=len(placed.columns),
        is_batch=graph.get("mode") == ExecutionMode.BATCH,
        is_compact=is_compact,
        nodes=nodes,
        edges=drawn,
        line=_line(nodes, placed, live, () if is_compact else tuple(map(_label_span, drawn))),
        about=describe(title, nodes, live),
    )


def _ends(edges: Sequence[Mapping[str, Any]]) -> list[Edge]:
    return [(edge["source"], edge["target"]) for edge in edges]


def describe(title: str, nodes: Sequence[NodePicture], live: Live) -> str:
    """The picture as text, for screen readers."""
    ended = [node.name for node in nodes if node.finished]
    parts = [f"{title} of {len(nodes)} operators: {', '.join(node.name for node in nodes)}."]
    if ended:
        parts.append(f"Finished: {', '.join(ended)}.")
    parts += [f"{node.name}: {node.mark.word}." for node in nodes if node.mark]
    if live.checkpoint:
        parts.append(f"{live.checkpoint.acknowledged} of {live.checkpoint.subtasks} subtasks have acknowledged "
                     f"{noun(live.checkpoint.kind)} {live.checkpoint.number}.")  # fmt: skip
    return " ".join([*parts, "The table below shows the same data."])


def _node(
    operator: Mapping[str, Any],
    graph: Mapping[str, Any],
    placed: Layout,
    live: Live,
    mark: OperatorMark | None,
    skew: float | None,
    now: datetime,
) -> NodePicture:
    uid = operator["uid"]
    names = {o["uid"]: o["name"] for o in graph["operators"]}
    numbers, box = live.operators.get(uid), placed.boxes[uid]
    room = box.width - 2 * _PAD
    beside_count = box.width - _COUNT_ROOM - _DIGIT_ROOM * (len(str(operator["parallelism"])) - 1)
    moving = numbers if live.flowing else None
    busy = _share(moving.busy) * room if moving else 0.0
    pressed = min(_share(moving.backpressured) * room, room - busy) if moving else 0.0
    return NodePicture(
        uid=uid,
        name=operator["name"],
        short_name=_short(operator["name"], _NAME_BREADTH if box.height > ROW else beside_count / _BREADTH),
        long=_breadth(operator["name"]) > _LARGE_BREADTH,
        role=operator["role"],
        bounded=operator["bounded"],
        parallelism=operator["parallelism"],
        box=box,
        state=numbers.state if numbers else "",
        mark=mark,
        numbers=numbers,
        flowing=moving is not None,
        stage=next((stage for stage in live.batch.stages if uid in stage.operators), None) if live.batch else None,
        records_in=formats.compact(numbers.records_in if numbers else None),
        records_out=formats.compact(numbers.records_out if numbers else None),
        rate_in=formats.rate(moving.rate_in if moving else None),
        rate_out=formats.rate(moving.rate_out if moving else None),
        watermark=formats.watermark(numbers.watermark if numbers else None, now),
        skew=skew,
        busy_width=round(busy, 1),
        backpressured_width=round(pressed, 1),
        sends_to=tuple((names[e["target"]], strategy(e)) for e in graph["edges"] if e["source"] == uid),
    )


def _edge(edge: Mapping[str, Any], route: Route, nodes: Mapping[str, NodePicture], live: Live) -> EdgePicture:
    source, target = nodes[edge["source"]], nodes[edge["target"]]
    numbers = source.numbers
    per_second = numbers.rate_out if numbers and source.flowing and not source.finished else None
    # By order of magnitude: 10/s is thin, 100 k/s is broad.
    width = round(min(_MIN_EDGE_WIDTH + 0.9 * log10(1 + (per_second or 0.0)), _MAX_EDGE_WIDTH), 1)
    word = strategy(edge)
    return EdgePicture(
        source=source.uid,
        target=target.uid,
        strategy=edge["partitioning"],
        path=_path(route.points),
        head=_head(route.points[-1], width),
        width=width,
        label=route.label,
        rate=formats.rate(per_second) if per_second is not None else None,
        flowing=bool(per_second),
        about=f"{source.name} to {target.name}: {word}" + (f", {formats.rate(per_second)}" if per_second else ""),
    )


def strategy(edge: Mapping[str, Any]) -> str:
    """The partitioning of an edge in words: hash by carrier, origin."""
    word = str(edge["partitioning"])
    if edge["keys"]:
        word = f"{word} by {', '.join(edge['keys'])}"
    if edge["output"]:
        word = f"{word}, side output {edge['output']}"
    if edge["feedback"]:
        return f"{word}, back into the loop"
    return f"{word}, read first" if edge["build"] else word


def _label_span(edge: EdgePicture) -> tuple[float, float]:
    """Left and right of the label of an edge."""
    breadth = max(_breadth(edge.strategy), _breadth(str(edge.rate or "")))
    half = breadth * _SMALL_BREADTH / 2
    return edge.label[0] - half, edge.label[0] + half


def _line(
    nodes: Sequence[NodePicture], placed: Layout, live: Live, labels: Sequence[tuple[float, float]]
) -> WeirLine | None:
    if live.checkpoint is None or not nodes:
        return None
    per_column = [
        sum(node.parallelism for node in nodes if node.box.x == left and not node.finished)
        for left, _ in placed.columns
    ]
    return weir_line(live.checkpoint, per_column, placed.columns, placed.height, labels)


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _short(name: str, most: float) -> str:
    """The name, cut to the breadth `most` of its node. Breadths are estimated, since no font is available here."""
    if _breadth(name) <= most:
        return name
    fits = max(n for n in range(len(name)) if _breadth(name[:n]) <= most - 1)
    return f"{name[:fits]}…"


def _breadth(name: str) -> float:
    return sum(_BREADTHS.get(letter, 1.2 if letter.isupper() else 1.0) for letter in name)


def _head(end: Point, width: float) -> str:
    """A small arrow head whose tip touches the box."""
    x, y = end
    half = 3.5 + width / 2
    return f"M{x:g} {y:g}l-9 {-half:g}v{2 * half:g}z"


def _path(points: Sequence[Point]) -> str:
    """A line with rounded corners that ends where the arrow head begins."""
    end = (points[-1][0] - 8, points[-1][1])
    way = [*points[:-1], end]
    parts = [f"M{way[0][0]:g} {way[0][1]:g}"]
    for before, corner, after in zip(way, way[1:], way[2:], strict=False):
        radius = min(_TURN, _distance(before, corner) / 2, _distance(corner, after) / 2)
        (ax, ay), (bx, by) = _towards(corner, before, radius), _towards(corner, after, radius)
        parts.append(f"L{ax:g} {ay:g}Q{corner[0]:g} {corner[1]:g} {bx:g} {by:g}")
    parts.append(f"L{end[0]:g} {end[1]:g}")
    return "".join(parts)


def _distance(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _towards(start: Point, goal: Point, length: float) -> Point:
    full = _distance(start, goal) or 1.0
    return (round(start[0] + (goal[0] - start[0]) * length / full, 1),
            round(start[1] + (goal[1] - start[1]) * length / full, 1))  # fmt: skip
