"""Coordinates of a layered graph: the position of each box and the route of each edge.

Edges leave a box on its right and enter the next box on its left. In the gap, each edge turns at right angles on its
own track. Back-edges of loops run below all boxes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TypeAlias

from console.ui.graph.layers import Edge, Layers, Vertex, layers

Point: TypeAlias = tuple[float, float]

_RELAXATIONS = 6
_LINE_DISTANCE = 4.0  #: two horizontal lines that are nearer look like one
_BACK_STEP = 30.0  #: distance of two horizontal runs below the boxes; room for a label
_BACK_PORT = 12.0  #: from the foot of a box up to its back-edge


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSizes:
    """Sizes in pixels."""

    box_width: float = 204
    box_height: float = 128
    gap: float = 148  #: between two ranks, at most; holds an edge's label
    least_gap: float = 84
    wide_gap: float = 96  #: for a graph wider than a wide page
    room: float = 1390  #: width of a wide page; gaps shrink to fit into it
    space: float = 32  #: between two boxes of one rank
    joint_height: float = 20
    margin: float = 16
    foot: float = 28  #: at the bottom, for the checkpoint's caption
    port_step: float = 22  #: distance of two edges at one side of a box
    track_step: float = 10  #: distance of two vertical runs in one gap
    track_margin: float = 18  #: from a vertical run to the box beside it; room for the arrow head
    back_margin: float = 15  #: from a back-edge's vertical run to the box beside it, nearer than any track
    port_height: float | None = None  #: edges enter at the top of a box and leave at its foot, within this height
    heights: Mapping[str, float] = field(default_factory=dict)  #: of boxes that are not `box_height` high


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Route:
    """The corners of an edge from box to box, and the position of its label (centre of a horizontal run)."""

    points: tuple[Point, ...]
    label: Point


@dataclass(frozen=True, slots=True)
class Layout:
    """`boxes` by name, `routes` and `back` in the order of the given edges, `columns` as (left, right) of each rank."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    routes: tuple[Route, ...]
    back: tuple[Route, ...]
    columns: tuple[tuple[float, float], ...]


def layout(
    nodes: Sequence[str], edges: Sequence[Edge], metrics: BoxSizes | None = None, back: Sequence[Edge] = ()
) -> Layout:
    """Places a graph whose `nodes` are in topological order of `edges`; `back` are its back-edges.

    The same graph always gives the same picture.
    """
    arranged = layers(nodes, edges)
    sizes = _fit_gaps(metrics or BoxSizes(), len(arranged.order))
    boxes = _boxes(arranged, sizes)
    node_boxes = {vertex: box for vertex, box in boxes.items() if isinstance(vertex, str)}
    columns = tuple(_column(rank, sizes) for rank in range(len(arranged.order)))
    lowest = max((box.y + box.height for box in boxes.values()), default=0)
    return Layout(
        width=(columns[-1][1] if columns else 0) + sizes.margin,
        height=lowest + _BACK_STEP * len(back) + sizes.margin + sizes.foot,
        boxes=node_boxes,
        routes=_routes(arranged, boxes, sizes),
        back=tuple(
            _back_route(node_boxes[source], node_boxes[target], lowest + _BACK_STEP * (number + 1), sizes.back_margin)
            for number, (source, target) in enumerate(back)
        ),
        columns=columns,
    )


def _back_route(source: Box, target: Box, level: float, margin: float) -> Route:
    """The route from the right of `source`, at height `level` below all boxes, to the left of `target`."""
    out, into = source.right + margin, target.x - margin
    leave, enter = source.y + source.height - _BACK_PORT, target.y + target.height - _BACK_PORT
    points = ((source.right, leave), (out, leave), (out, level), (into, level), (into, enter), (target.x, enter))
    return Route(points, ((out + into) / 2, level))


def _fit_gaps(sizes: BoxSizes, ranks: int) -> BoxSizes:
    """The sizes with gaps that fit the graph into a wide page, else with `wide_gap`."""
    free = sizes.room - 2 * sizes.margin - ranks * sizes.box_width
    gap = free / max(ranks - 1, 1)
    return replace(sizes, gap=min(sizes.gap, gap // 1) if gap >= sizes.least_gap else sizes.wide_gap)


def _column(rank: int, sizes: BoxSizes) -> tuple[float, float]:
    left = sizes.margin + rank * (sizes.box_width + sizes.gap)
    return left, left + sizes.box_width


def _boxes(arranged: Layers, sizes: BoxSizes) -> dict[Vertex, Box]:
    middles = _middles(arranged, sizes)
    top = min((middles[v] - _height(v, sizes) / 2 for v in middles), default=0)
    shift = sizes.margin - top
    return {
        vertex: Box(_column(rank, sizes)[0], round(middles[vertex] + shift - _height(vertex, sizes) / 2, 1),
                    sizes.box_width, _height(vertex, sizes))
        for rank, column in enumerate(arranged.order)
        for vertex in column
    }  # fmt: skip


def _height(vertex: Vertex, sizes: BoxSizes) -> float:
    return sizes.heights.get(vertex, sizes.box_height) if isinstance(vertex, str) else sizes.joint_height


def _middles(arranged: Layers, sizes: BoxSizes) -> dict[Vertex, float]:
    """The vertical middle of each vertex, close to its neighbours as order and spacing allow: least squares, rank by
    rank.

    Sweeps alternate towards successors and predecessors; the last sweep makes a chain a straight line.
    """
    before, behind = _neighbours(arranged)
    middles: dict[Vertex, float] = {}
    for column in arranged.order:
        middles.update(zip(column, _keep_apart(column, [0.0] * len(column), sizes), strict=True))
    for sweep in range(_RELAXATIONS):
        forward = sweep % 2 == 1
        beside = before if forward else behind
        for column in arranged.order if forward else reversed(arranged.order):
            targets = [fmean(middles[n] for n in beside[v]) if beside[v] else middles[v] for v in column]
            middles.update(zip(column, _keep_apart(column, targets, sizes), strict=True))
    return middles


def _neighbours(arranged: Layers) -> tuple[dict[Vertex, list[Vertex]], dict[Vertex, list[Vertex]]]:
    """The predecessors and the successors of each vertex."""
    before: dict[Vertex, list[Vertex]] = {vertex: [] for column in arranged.order for vertex in column}
    behind: dict[Vertex, list[Vertex]] = {vertex: [] for vertex in before}
    for chain in arranged.chains:
        for a, b in itertools.pairwise(chain):
            behind[a].append(b)
            before[b].append(a)
    return before, behind


def _keep_apart(column: Sequence[Vertex], targets: Sequence[float], sizes: BoxSizes) -> list[float]:
    """The positions nearest to `targets` that keep order and spacing (isotonic regression by pooling adjacent
    violators).
    """
    offsets = [0.0]
    for above, below in itertools.pairwise(column):
        offsets.append(offsets[-1] + (_height(above, sizes) + _height(below, sizes)) / 2 + sizes.space)
    pools: list[list[float]] = []
    for place, offset in zip(targets, offsets, strict=False):
        pool = [place - offset]
        while pools and fmean(pools[-1]) > fmean(pool):
            pool = pools.pop() + pool
        pools.append(pool)
    level = [fmean(pool) for pool in pools for _ in pool]
    return [place + offset for place, offset in zip(level, offsets, strict=False)]


@dataclass(slots=True)
class _Hop:
    """The route of an edge through a gap."""

    edge: int
    gap: int
    start: float
    end: float
    early: bool  #: turns near its source, because its label is near its target
    x: float = 0.0


def _routes(arranged: Layers, boxes: Mapping[Vertex, Box], sizes: BoxSizes) -> tuple[Route, ...]:
    leave, enter = _ports(arranged, boxes, sizes)
    rank = {vertex: number for number, column in enumerate(arranged.order) for vertex in column}
    hops: list[list[_Hop]] = []
    for number, chain in enumerate(arranged.chains):
        early = len([c for c in arranged.chains if c[0] == chain[0]]) > 1
        heights = [leave[number], *(boxes[joint].middle for joint in chain[1:-1]), enter[number]]
        gaps = range(rank[chain[0]], rank[chain[-1]])
        pairs = zip(gaps, heights, heights[1:], strict=False)
        hops.append([_Hop(number, gap, start, end, early) for gap, start, end in pairs])
    _assign_tracks([hop for way in hops for hop in way], sizes)
    return tuple(_route(way, sizes) for way in hops)


def _ports(arranged: Layers, boxes: Mapping[Vertex, Box], sizes: BoxSizes) -> tuple[list[float], list[float]]:
    """Per edge, the heights at which it leaves and enters a box, ordered by the heights of the other ends."""
    leave, enter = [0.0] * len(arranged.chains), [0.0] * len(arranged.chains)
    for node in (vertex for vertex in boxes if isinstance(vertex, str)):
        out = [number for number, chain in enumerate(arranged.chains) if chain[0] == node]
        into = [number for number, chain in enumerate(arranged.chains) if chain[-1] == node]
        box = boxes[node]
        height = min(sizes.port_height or box.height, box.height)
        foot = replace(box, y=box.y + box.height - height, height=height)
        top = replace(box, height=height)
        ways = sorted(out, key=lambda n: boxes[arranged.chains[n][1]].middle)
        for number, y in _spread(ways, foot, sizes.port_step):
            leave[number] = y
        ways = sorted(into, key=lambda n: boxes[arranged.chains[n][-2]].middle)
        for number, y in _spread(ways, top, sizes.port_step):
            enter[number] = y
    return leave, enter


def _spread(edges: Sequence[int], box: Box, port_step: float) -> list[tuple[int, float]]:
    step = min(port_step, (box.height - 16) / max(len(edges), 1))
    first = box.middle - step * (len(edges) - 1) / 2
    return [(edge, first + step * place) for place, edge in enumerate(edges)]


def _assign_tracks(hops: Sequence[_Hop], sizes: BoxSizes) -> None:
    """Assigns early turns to the left tracks of each gap, late turns to the right. Their order avoids crossings."""
    for gap in {hop.gap for hop in hops}:
        right = sizes.margin + gap * (sizes.box_width + sizes.gap) + sizes.box_width
        turning = [hop for hop in hops if hop.gap == gap and hop.start != hop.end]
        falling = sorted((h for h in turning if h.end > h.start), key=lambda h: -h.start)
        rising = sorted((h for h in turning if h.end < h.start), key=lambda h: h.start)
        step = min(sizes.track_step, (sizes.gap - 2 * sizes.track_margin) / max(len(turning) - 1, 1))
        for early in (True, False):
            side = [hop for hop in (*falling, *rising) if hop.early is early]
            width = step * (len(side) - 1)
            first = right + sizes.track_margin if early else right + sizes.gap - sizes.track_margin - width
            for place, hop in enumerate(side):
                hop.x = first + place * step
        for ending, beginning in itertools.permutations(turning, 2):
            if abs(ending.end - beginning.start) < _LINE_DISTANCE and ending.x < beginning.x:
                ending.x, beginning.x = beginning.x, ending.x  # else their horizontal parts overlap


def _route(way: Sequence[_Hop], sizes: BoxSizes) -> Route:
    start = sizes.margin + way[0].gap * (sizes.box_width + sizes.gap) + sizes.box_width
    end = start + (len(way) - 1) * (sizes.box_width + sizes.gap) + sizes.gap
    points: list[Point] = [(start, way[0].start)]
    for hop in way:
        if hop.start != hop.end:
            points += [(hop.x, hop.start), (hop.x, hop.end)]
    points.append((end, way[-1].end))
    return Route(tuple(points), _label(points, way, sizes))


def _label(points: Sequence[Point], way: Sequence[_Hop], sizes: BoxSizes) -> Point:
    """The label's position on a run that no other edge shares: over a joint, else at the separate end of the edge."""
    if len(way) > 1:
        return points[0][0] + sizes.gap + sizes.box_width / 2, way[0].end
    (x, y), (next_x, _) = (points[-2], points[-1]) if way[0].early else (points[0], points[1])
    return (x + next_x) / 2, y
