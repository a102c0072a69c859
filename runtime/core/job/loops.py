"""Cycles of a directed graph: back-edges and strongly connected components.

A back-edge leads to a vertex on the current path of a depth-first search. Without the back-edges the graph is acyclic
and still has every vertex, so the rules for acyclic graphs apply. (ABS, Carbone et al. 2015, section 4.3.) The search
is iterative: a long chain of operators would exceed Python's recursion limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Edge: TypeAlias = tuple[str, str]
_OutEdge: TypeAlias = tuple[int, str]  #: an edge's index, and where it leads


def back_edges(vertices: Sequence[str], edges: Sequence[Edge]) -> tuple[int, ...]:
    """Indices of the edges that close a cycle, in order. The search starts at the vertices without incoming edges."""
    fed = {target for _, target in edges}
    roots = [vertex for vertex in vertices if vertex not in fed] + [vertex for vertex in vertices if vertex in fed]
    return tuple(sorted(_search(roots, edges).back_edges))


def components(vertices: Sequence[str], edges: Sequence[Edge]) -> Mapping[str, str]:
    """For each vertex the representative of its strongly connected component (Kosaraju)."""
    order = [vertex for _, vertex in _search(vertices, edges).finished]
    reverse = [(target, source) for source, target in edges]
    return {vertex: root for root, vertex in _search(order[::-1], reverse).finished}


@dataclass(slots=True)
class _SearchResult:
    back_edges: list[int] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)  #: (root, vertex), in post-order


def _search(roots: Sequence[str], edges: Sequence[Edge]) -> _SearchResult:
    """Searches depth first from each root that has not been visited yet."""
    ways: dict[str, list[_OutEdge]] = {}
    for index, (source, target) in enumerate(edges):
        ways.setdefault(source, []).append((index, target))
    result, visited = _SearchResult(), set[str]()
    for root in roots:
        if root not in visited:
            _search_from(root, ways, visited, result)
    return result


def _search_from(root: str, ways: Mapping[str, Sequence[_OutEdge]], visited: set[str], result: _SearchResult) -> None:
    path: dict[str, Iterator[_OutEdge]] = {root: iter(ways.get(root, ()))}
    visited.add(root)
    while path:
        vertex = next(reversed(path))
        way = next(path[vertex], None)
        if way is None:
            del path[vertex]
            result.finished.append((root, vertex))
        elif way[1] in path:
            result.back_edges.append(way[0])
        elif way[1] not in visited:
            visited.add(way[1])
            path[way[1]] = iter(ways.get(way[1], ()))
