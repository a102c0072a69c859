"""A plot as an SVG file, for documents and tickets: with title, legend, scale and times, and colours of its own.

The file has presentation attributes in place of a stylesheet. Its colours are those of the pages by day.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.template.loader import render_to_string

from console.ui.plots.timeline import Plot, Timeline

_ACCENT, _FAILED, _MUTED, _CONTROL, _DARK = "#0a6a70", "#b02a20", "#566466", "#7d8b8d", "#3e4b4d"
#: By key of a series, and by last name in the class of a layer.
_COLOURS: Final[Mapping[str, str]] = {
    "in": _ACCENT, "out": _DARK, "lag": _ACCENT, "other": _MUTED, "state": _ACCENT, "failed": _FAILED,
    "start_delay": _CONTROL, "alignment": "#4b5a5c", "pre_barrier": "#263133", "sync": "#8fc3c4", "async": _ACCENT,
    "commit": "#54a0a3",
}  # fmt: skip
_OPACITY: Final[Mapping[str, str]] = {"area": "0.14", "failed": "0.7"}


@dataclass(frozen=True, slots=True)
class DrawnLayer:
    """A path with its colours: a line has a stroke, all other layers are filled."""

    path: str
    colour: str
    opacity: str
    is_line: bool


def svg_file(timeline: Timeline, key: str) -> str | None:
    """The plot `key` of the timeline as a document; None if there is no such plot."""
    plot = next((plot for plot in (*timeline.plots_above, *timeline.plots_below) if plot.key == key), None)
    if plot is None:
        return None
    legend = [(series.label, _COLOURS[series.key]) for series in plot.series if series.key in _COLOURS]
    context = {"timeline": timeline, "plot": plot, "layers": _layers(plot), "legend": legend}
    return render_to_string("jobs/plot.svg", context)


def _layers(plot: Plot) -> list[DrawnLayer]:
    layers = []
    for name, path in plot.layers:
        kind, last = name.split()[0], name.split()[-1]
        layers.append(DrawnLayer(path, _COLOURS[last], _OPACITY.get(kind, "1"), kind == "line"))
    return layers
