"""A compact graph as SVG. It is joined here: a template loop over 30 operators takes ten times as long."""

from collections.abc import Callable
from typing import Final

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

from console import formats
from console.formats import Quantity
from console.ui.graph.compact import ROW
from console.ui.graph.picture import EdgePicture, GraphPicture, NodePicture
from console.ui.status import SHAPES

_PAD: Final = 10.0
_BAR_X: Final = 72.0  #: right of the rate
_EDGE_SCALE: Final = 0.6  #: of the width of an edge in a graph with all numbers


def compact_graph(
    picture: GraphPicture, operator: str, address: Callable[[str], str], name: str = "node"
) -> SafeString:
    """Edges and nodes.

    Args:
        operator: uid of the chosen operator.
        address: of the page with another chosen operator.
        name: begin of the ids of nodes.
    """
    ends = {(node.box.x, node.box.y + node.box.height) for node in picture.nodes}
    edges = (_edge(edge) for edge in picture.edges)
    nodes = (
        _node(
            node,
            f"{name}-{number}",
            address(node.uid),
            is_chosen=node.uid == operator,
            is_next=(node.box.x, node.box.y) in ends,
        )
        for number, node in enumerate(picture.nodes, start=1)
    )
    return mark_safe("".join([*edges, *nodes]))  # noqa: S308


def _edge(edge: EdgePicture) -> str:
    return (
        f'<g class="edge {escape(edge.strategy)}{" flowing" if edge.flowing else ""}">'
        f"<title>{escape(edge.about)}</title>"
        f'<path class="wire" d="{edge.path}" stroke-width="{max(1.0, edge.width * _EDGE_SCALE):g}"/>'
        f'<path class="head" d="{edge.head}"/></g>'
    )


def _node(node: NodePicture, name: str, href: str, *, is_chosen: bool, is_next: bool) -> str:
    """A row. `is_next`: the row above is its input, within a chain."""
    box, right = node.box, node.box.width - _PAD
    current = ' aria-current="true"' if is_chosen else ""
    state = f", {node.state}" if node.state else ""
    mark = f", {node.mark.word}" if node.mark else ""
    meaning = f" {node.mark.meaning}" if node.mark else ""
    arrow = f'<path class="into" d="M{box.width / 2 - 5:g} -1h10l-5 6z"/>' if is_next else ""
    return (
        f'<a class="node-link" id="{name}" href="{escape(href)}#graph-head"{current}>'
        f'<g class="node {escape(node.role)}{" finished" if node.finished else ""}{meaning}" '
        f'transform="translate({box.x:g} {box.y:g})"><title>{_about(node)}{escape(state + mark)}</title>'
        f'<rect class="frame" width="{box.width:g}" height="{ROW:g}"/>{arrow}'
        f'<rect class="halo" x="1.5" y="1.5" width="{box.width - 3:g}" height="{ROW - 3:g}"/>'
        f'<text class="name long" x="{_PAD:g}" y="16">{escape(node.short_name)}</text>'
        f'<text class="figure fine" x="{right:g}" y="16" text-anchor="end"><tspan class="unit">×</tspan>'
        f"{node.parallelism}</text>{_foot(node, right)}</g></a>"
    )


def _about(node: NodePicture) -> str:
    flow = f", busy {node.busy}, backpressured {node.backpressured}" if node.flowing else ""
    return escape(f"{node.name}, parallelism {node.parallelism}{flow}")


def _foot(node: NodePicture, right: float) -> str:
    """The second line: its mark and its load, a tick if the operator has finished, else its rate and its load."""
    if node.mark:
        word = f'<text class="mark fine {node.mark.meaning}" x="{_PAD + 15:g}" y="31">{escape(node.mark_word)}</text>'
        drawn = f"{shape(node.mark.shape, _PAD, 21)}{word}"
        return f"{drawn}{_load(node, _PAD, right, 34.5, 3)}" if node.flowing else drawn
    if node.finished:
        word = f'<text class="done fine" x="{_PAD + 16:g}" y="33">finished</text>'
        return f'<path class="tick" d="M{_PAD:g} 28l3 3 6-7"/>{word}'
    is_source = node.role == "source"
    moved = node.records_out if is_source else node.records_in
    value = (node.rate_out if is_source else node.rate_in) if node.flowing else moved
    figure = f'<text class="figure fine" x="{_PAD:g}" y="33">{_quantity(value)}</text>'
    if not node.flowing:
        return figure
    return f"{figure}{_load(node, _BAR_X, right, 27, 5)}"


def _load(node: NodePicture, left: float, right: float, y: float, height: float) -> str:
    """The bar of busy and backpressured time."""
    width = right - left
    busy = node.busy_width / node.bar_width * width
    pressed = node.backpressured_width / node.bar_width * width
    return (
        f'<rect class="track" x="{left:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'
        f'<rect class="busy-bar" x="{left:g}" y="{y:g}" width="{busy:.1f}" height="{height:g}"/>'
        f'<rect class="pressed-bar" x="{left + busy:.1f}" y="{y:g}" width="{pressed:.1f}" height="{height:g}"/>'
    )


def shape(name: str, x: float, y: float) -> str:
    """A symbol within a drawing: its upper left corner is at `x` and `y`."""
    return f'<g class="shape" transform="translate({x:g} {y:g})">{SHAPES[name]}</g>'


def _quantity(value: Quantity) -> str:
    unit = f'<tspan class="unit"> {escape(value.unit)}</tspan>' if value.unit else ""
    return f"{escape(value.number)}{unit}" if value != formats.NO_QUANTITY else formats.NO_VALUE
