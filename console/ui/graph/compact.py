"""The layout of a large graph: chains of operators are stacked, so that the graph fits into the width of a page.

A chain is a path whose inner edges are the only edge of both their ends. Its operators share a box, a row each, and the
inner edges are not drawn. A long chain has several boxes. Boxes are as wide as the number of ranks allows.
"""

from collections.abc import Sequence
from typing import Final

from console.ui.graph.layers import Edge, ranks
from console.ui.graph.layout import Box, BoxSizes, Layout, Route, layout

MIN_OPERATORS: Final = 8  #: smaller graphs are drawn with all numbers
MAX_ROWS: Final = 6  #: of a box
ROW: Final = 40.0  #: height of an operator
MAX_BESIDE_RANKS: Final = 5  #: the inspector stands beside such a graph
NARROW_ROOM: Final = 356.0  #: width that a page of 390 px leaves
_ROOM: Final = 1390.0  #: width of a wide page
ROOM_BESIDE: Final = 1008.0  #: width that the inspector leaves on a wide page
_GAP: Final = 52.0
_LEAST_GAP: Final = 40.0
_MARGIN: Final = 12.0
_NARROW_MARGIN: Final = 8.0
_MIN_WIDTH: Final = 112.0
_MAX_WIDTH: Final = 216.0


def compact_layout(
    nodes: Sequence[str], edges: Sequence[Edge], back: Sequence[Edge] = (), room: float | None = None
) -> Layout:
    """Places a graph as `layout` does. The box of a node is its row, and edges within a chain have no points.

    `room`: the width of the page, if it is narrow.
    """
    groups = chains(nodes, edges, back)
    head = {node: chain[0] for chain in groups for node in chain}
    outer = [(head[a], head[b]) for a, b in edges if head[a] != head[b]]
    heads = [chain[0] for chain in groups]
    placed = layout(heads, outer, _metrics(heads, outer, groups, room), back=[(head[a], head[b]) for a, b in back])
    boxes = {
        node: Box(box.x, box.y + at * ROW, box.width, ROW)
        for chain in groups
        for box in [placed.boxes[chain[0]]]
        for at, node in enumerate(chain)
    }
    drawn = iter(placed.routes)
    routes = tuple(next(drawn) if head[a] != head[b] else Route((), (0.0, 0.0)) for a, b in edges)
    return Layout(placed.width, placed.height, boxes, routes, placed.back, placed.columns)


def chains(nodes: Sequence[str], edges: Sequence[Edge], back: Sequence[Edge] = ()) -> list[tuple[str, ...]]:
    """The chains of a graph whose `nodes` are in topological order. A node without such a neighbour is a chain of one.

    The result is in topological order of the contracted graph: a chain has no edges but at its ends. Ends of loops
    begin and end chains.
    """
    after: dict[str, list[str]] = {node: [] for node in nodes}
    before: dict[str, list[str]] = {node: [] for node in nodes}
    for a, b in edges:
        after[a].append(b)
        before[b].append(a)
    looped = {end for edge in back for end in edge}
    pieces, placed = [], set()
    for node in nodes:
        if node in placed:
            continue
        chain = [node]
        while len(after[chain[-1]]) == 1 and len(before[after[chain[-1]][0]]) == 1:
            if chain[-1] in looped or after[chain[-1]][0] in looped:
                break
            chain.append(after[chain[-1]][0])
        placed.update(chain)
        pieces += _pieces(chain)
    return pieces


def _pieces(chain: Sequence[str]) -> list[tuple[str, ...]]:
    """Parts of about the same length, at most `MAX_ROWS` each, so that a long chain does not make the page long."""
    count = -(-len(chain) // MAX_ROWS)
    size = -(-len(chain) // count)
    return [tuple(chain[first : first + size]) for first in range(0, len(chain), size)]


def _metrics(
    heads: Sequence[str], edges: Sequence[Edge], groups: Sequence[Sequence[str]], narrow: float | None
) -> BoxSizes:
    depth = max(ranks(heads, edges).values(), default=0) + 1
    room = narrow or (ROOM_BESIDE if depth <= MAX_BESIDE_RANKS else _ROOM)
    gap, margin = (_LEAST_GAP, _NARROW_MARGIN) if narrow else (_GAP, _MARGIN)
    width = (room - 2 * margin - (depth - 1) * gap) / depth
    return BoxSizes(
        box_width=min(max(width // 1, _MIN_WIDTH), _MAX_WIDTH),
        box_height=ROW,
        heights={chain[0]: ROW * len(chain) for chain in groups},
        gap=gap,
        least_gap=_LEAST_GAP,
        wide_gap=gap,
        room=room,
        space=14,
        joint_height=10,
        margin=margin,
        track_margin=13,
        track_step=6,
        back_margin=7,
        port_step=12,
        port_height=ROW,
    )
