"""A small line of numbers over the last hour, with the same numbers as a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from console import formats
from console.ui.plots import shapes


@dataclass(frozen=True, slots=True)
class Sparkline:
    path: str
    box: str
    about: str


def sparkline(
    what: str, values: Sequence[float | None], newest: float | None, form: Callable[[float | None], formats.Quantity]
) -> Sparkline | None:
    """The line from zero to the largest of `values`; None for fewer than two values.

    It ends at `newest`, which stands beside it: the last interval, which is not over, has another value.
    """
    places = [place for place, value in enumerate(values) if value is not None]
    if len(places) < 2:
        return None
    if newest is not None:
        values = [*values[: places[-1]], newest, *values[places[-1] + 1 :]]
    points = [value for value in values if value is not None]
    about = f"{what} over the last hour: {form(min(points))} to {form(max(points))}, last {form(points[-1])}"
    return Sparkline(shapes.line(values, max(points) or 1.0), f"0 0 {len(values)} {shapes.HEIGHT}", about)
