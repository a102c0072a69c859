"""Paths of plots, in the user space of an `<svg>` that the browser stretches to its place.

A unit of x is an interval of the grid; y runs from 0, the maximum, to `HEIGHT`, the zero line. A line or an area is one
path, and so are all bars of a phase, so a page stays small. Numbers are whole where a pixel allows it.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final

HEIGHT: Final = 200
_BAR: Final = 0.7  #: width of a bar in intervals
_STUB: Final = 4
_CUT: Final = (36, 26)  #: bottom and top of the gap in a bar that is cut

Values = Sequence[float | None]


def line(values: Values, most: float) -> str:
    """A line through the middles of the intervals, interrupted where there is no value."""
    return "".join(
        f"M{run[0][0] + 0.5:g} {_y(run[0][1], most)}{_steps(run, most) if len(run) > 1 else 'h0'}"
        for run in _runs(values)
    )


def area(values: Values, most: float) -> str:
    """The area below `line`."""
    return "".join(
        f"M{run[0][0] + 0.5:g} {HEIGHT}V{_y(run[0][1], most)}{_steps(run, most)}V{HEIGHT}z"
        for run in _runs(values)
        if len(run) > 1
    )


def bars(below: Sequence[float], values: Values, most: float) -> str:
    """A bar per value that stands on the height `below`. A bar too low to be seen is left out."""
    drawn = []
    for at, (foot, value) in enumerate(zip(below, values, strict=True)):
        if not value:
            continue
        low, high = _y(foot, most), _y(foot + value, most)
        if low > high:
            drawn.append(f"M{at + (1 - _BAR) / 2:g} {low}v{high - low}h{_BAR}v{low - high}z")
    return "".join(drawn)


def cut_bars(values: Values, most: float) -> str:
    """A bar per value, high enough to be seen. A bar that is higher than the plot has a gap near its top."""
    least = most * _STUB / HEIGHT
    fitting = [None if value is None or value > most else max(value, least) for value in values]
    low, high = _CUT
    cut = [
        f"M{at + (1 - _BAR) / 2:g} {HEIGHT}V{low}h{_BAR}V{HEIGHT}zm0 {high - HEIGHT}V0h{_BAR}V{high}z"
        for at, value in enumerate(values)
        if value is not None and value > most
    ]
    return bars([0.0] * len(values), fitting, most) + "".join(cut)


def stubs(values: Values) -> str:
    """A low bar where there is a value, however small it is."""
    return bars([0.0] * len(values), [None if value is None else float(_STUB) for value in values], float(HEIGHT))


def cells(row: int, levels: Sequence[Hashable]) -> Iterable[tuple[Hashable, str]]:
    """The cells of a row of the heat map with their level; neighbours of the same level are one line.

    A row has the height 1. The stroke of a line is nearly as high, which takes half the bytes of a rectangle.
    """
    at = 0
    for level, group in groupby(levels):
        width = len(list(group))
        yield level, f"M{at} {row}h{width}"
        at += width


def _runs(values: Values) -> Iterable[list[tuple[int, float]]]:
    """Consecutive intervals with a value, as (index, value)."""
    numbered = [(at, value) for at, value in enumerate(values) if value is not None]
    begin = 0
    for end, (before, after) in enumerate(pairwise(numbered), start=1):
        if after[0] - before[0] > 1:
            yield numbered[begin:end]
            begin = end
    if numbered:
        yield numbered[begin:]


def _steps(run: Sequence[tuple[int, float]], most: float) -> str:
    """The points after the first, each relative to the one before: small numbers compress to half."""
    heights = [_y(value, most) for _, value in run]
    return "l" + " ".join(f"1{after - before:+d}".replace("+", " ") for before, after in pairwise(heights))


def _y(value: float, most: float) -> int:
    return HEIGHT - round(min(max(value / most, 0.0), 1.0) * HEIGHT)
