"""Layered drawing of a graph from left to right: ranks by longest path, order within a rank by barycentre.

Long edges are split by joints, one per rank, so that every link spans exactly one rank. This module knows neither sizes
nor coordinates. The steps are those of Sugiyama, Tagawa and Toda (1981).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

_SWEEPS = 8

Vertex: TypeAlias = str | tuple[int, int]  #: name of a node, or (i, r) for the joint of edge i in rank r
Edge: TypeAlias = tuple[str, str]
Link: TypeAlias = tuple[Vertex, Vertex]
Order: TypeAlias = tuple[tuple[Vertex, ...], ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """`order[r]` lists the vertices of rank r from top to bottom; `chains[i]` is the path of edge i, ends included."""

    order: Order
    chains: tuple[tuple[Vertex, ...], ...]


def layers(nodes: Sequence[str], edges: Sequence[Edge]) -> Layers:
    """Arranges `nodes`, which must be in topological order, as a job graph's operators are."""
    rank = ranks(nodes, edges)
    chains = tuple(_chain(number, edge, rank) for number, edge in enumerate(edges))
    links = [link for chain in chains for link in itertools.pairwise(chain)]
    return Layers(_minimise_crossings(_initial(nodes, chains, rank), links), chains)


def ranks(nodes: Sequence[str], edges: Sequence[Edge]) -> Mapping[str, int]:
    """Rank of each node: longest path from a source. Sources then move next to their first reader, to shorten edges."""
    rank = dict.fromkeys(nodes, 0)
    for node in nodes:
        for source, target in edges:
            if source == node:
                rank[target] = max(rank[target], rank[node] + 1)
    for node in nodes:
        readers = [rank[target] for source, target in edges if source == node]
        if readers and not any(target == node for _, target in edges):
            rank[node] = min(readers) - 1
    return rank


def crossings(order: Order, links: Sequence[Link]) -> int:
    """The number of pairs of links that cross."""
    place = _places(order)
    ends = [(place[a][0], place[a][1], place[b][1]) for a, b in links]
    return sum(
        1
        for number, (rank, a, b) in enumerate(ends)
        for other_rank, c, d in ends[number + 1 :]
        if rank == other_rank and (a - c) * (b - d) < 0
    )


def _chain(number: int, edge: Edge, rank: Mapping[str, int]) -> tuple[Vertex, ...]:
    source, target = edge
    joints = [(number, between) for between in range(rank[source] + 1, rank[target])]
    return (source, *joints, target)


def _initial(nodes: Sequence[str], chains: Sequence[tuple[Vertex, ...]], rank: Mapping[str, int]) -> Order:
    columns: list[list[Vertex]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for node in nodes:
        columns[rank[node]].append(node)
    for chain in chains:
        for joint in chain[1:-1]:
            assert isinstance(joint, tuple)
            columns[joint[1]].append(joint)
    return tuple(tuple(column) for column in columns)


def _minimise_crossings(order: Order, links: Sequence[Link]) -> Order:
    """Sweeps to the right and to the left. Returns the order with the fewest crossings, the earliest among equals."""
    best, fewest = order, crossings(order, links)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        order = _sweep(order, links, forward=sweep % 2 == 0)
        if (count := crossings(order, links)) < fewest:
            best, fewest = order, count
    return best


def _sweep(order: Order, links: Sequence[Link], *, forward: bool) -> Order:
    columns = list(order)
    indexes = range(1, len(columns)) if forward else range(len(columns) - 2, -1, -1)
    for index in indexes:
        fixed = {vertex: place for place, vertex in enumerate(columns[index - 1 if forward else index + 1])}
        columns[index] = _by_barycentre(columns[index], fixed, links)
    return tuple(columns)


def _by_barycentre(column: Sequence[Vertex], fixed: Mapping[Vertex, int], links: Sequence[Link]) -> tuple[Vertex, ...]:
    def centre(item: tuple[int, Vertex]) -> float:
        place, vertex = item
        beside = [fixed[a] for a, b in links if b == vertex and a in fixed]
        beside += [fixed[b] for a, b in links if a == vertex and b in fixed]
        return fmean(beside) if beside else float(place)

    return tuple(vertex for _, vertex in sorted(enumerate(column), key=centre))


def _places(order: Order) -> Mapping[Vertex, tuple[int, int]]:
    return {vertex: (rank, place) for rank, column in enumerate(order) for place, vertex in enumerate(column)}
