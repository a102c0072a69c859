"""Paths read back as the numbers that they show."""

import re

from hypothesis import given
from hypothesis import strategies as st

from console.ui.plots.shapes import HEIGHT, area, bars, cells, cut_bars, line

VALUES = st.lists(st.none() | st.floats(0, 100, allow_nan=False), max_size=40)


def points(path: str) -> dict[int, int]:
    """Height by interval of each point of a line."""
    heights = {}
    for start, height, steps in re.findall(r"M([\d.]+) (\d+)(?:h0|l([^M]*))", path):
        at, y = int(float(start)), int(height)
        heights[at] = HEIGHT - y
        for width, rise in re.findall(r"(\d+)( \d+|-\d+)", steps):
            at, y = at + int(width), y + int(rise)
            heights[at] = HEIGHT - y
    return heights


@given(VALUES)
def test_a_line_has_a_point_per_value_and_is_interrupted_where_there_is_none(values: list[float | None]) -> None:
    drawn = line(values, 100)
    heights = {at: round(value / 100 * HEIGHT) for at, value in enumerate(values) if value is not None}
    assert points(drawn) == heights
    starts = [at for at in heights if at - 1 not in heights]
    assert drawn.count("M") == len(starts)
    assert area(values, 100).count("z") == sum(at + 1 in heights for at in starts)


@given(VALUES, VALUES)
def test_bars_stand_on_each_other(low: list[float | None], high: list[float | None]) -> None:
    """The heights of a bar and of the bar on it are those of the numbers, to half a unit each."""
    size = min(len(low), len(high))
    feet = [value or 0.0 for value in low[:size]]
    drawn = re.findall(r"M([\d.]+) (\d+)v-(\d+)h", bars(feet, high[:size], 200))
    for x, foot, height in drawn:
        at = int(float(x))
        assert HEIGHT - int(foot) == round(feet[at] / 200 * HEIGHT)
        assert abs(int(height) - (high[at] or 0) / 200 * HEIGHT) <= 1
    unseen = {at for at in range(size) if (high[at] or 0) / 200 * HEIGHT < 1}
    assert {int(float(x)) for x, _, _ in drawn} | unseen >= set(range(size))


def test_a_bar_that_is_higher_than_the_plot_has_a_gap() -> None:
    fitting, low, cut = re.findall("M[^M]+", cut_bars([100.0, None, 0.1, 201.0], 200))
    assert fitting == "M0.15 200v-100h0.7v100z"
    assert low.startswith("M2.15 200v-4h"), "it can be seen"
    body, top = cut.split("m")
    assert body == f"M3.15 {HEIGHT}V36h0.7V{HEIGHT}z"
    assert top == f"0 {26 - HEIGHT}V0h0.7V26z", "from the same corner"


@given(st.lists(st.integers(0, 3), max_size=60))
def test_cells_of_all_levels_cover_the_row_once(levels: list[int]) -> None:
    covered: list[int] = []
    for level, path in cells(7, levels):
        ((left, width),) = re.findall(r"M(\d+) 7h(\d+)$", path)
        span = range(int(left), int(left) + int(width))
        assert {levels[at] for at in span} == {level}
        covered += span
    assert covered == list(range(len(levels)))
