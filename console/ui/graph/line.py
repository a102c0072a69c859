"""The running checkpoint as a weir: a line across the graph that moves downstream as subtasks acknowledge.

The master reports only the number of acknowledgements. Barriers pass the columns from left to right, so the line stands
where the acknowledged number of subtasks is behind it: exact at the gaps, an estimate within a column. It never crosses
the label of an edge: it stands beside the label instead.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from console.checkpoints.models import noun
from console.metrics.live import CheckpointLive

_TOOTH = 12.0  #: height of one tooth; they point downstream, as on a map
_DEPTH = 5.0
_CLEARANCE = 7.0  #: from the line to a label beside it: more than a tooth
_CAPTION_HALF = 148.0  #: half the width of a caption


@dataclass(frozen=True, slots=True)
class WeirLine:
    """`teeth` is an SVG path; `anchor` keeps the caption inside the picture."""

    x: float
    top: float
    bottom: float
    teeth: str
    caption: str
    caption_y: float
    anchor: str


def weir_line(
    checkpoint: CheckpointLive,
    per_column: Sequence[int],
    columns: Sequence[tuple[float, float]],
    height: float,
    labels: Sequence[tuple[float, float]] = (),
) -> WeirLine:
    """The line of `checkpoint`.

    Args:
        per_column: the subtasks of each column that must acknowledge.
        labels: left and right of each label that the line must not cross.
    """
    share = checkpoint.acknowledged / checkpoint.subtasks if checkpoint.subtasks else 0.0
    x = round(_beside(labels, _place(min(max(share, 0.0), 1.0), per_column, columns)), 1)
    top, bottom = 4.0, height - 24.0
    return WeirLine(x, top, bottom, _teeth(x, top, bottom), caption(checkpoint), height - 8.0, _anchor(x, columns))


def caption(checkpoint: CheckpointLive) -> str:
    return (
        f"{noun(checkpoint.kind)} {checkpoint.number}, {checkpoint.acknowledged} of {checkpoint.subtasks} acknowledged"
    )


def _place(share: float, per_column: Sequence[int], columns: Sequence[tuple[float, float]]) -> float:
    total = sum(per_column)
    behind = share * total
    stops = _line_positions(columns)
    passed = 0
    for index, subtasks in enumerate(per_column):
        if behind < passed + subtasks:
            return stops[index] + (stops[index + 1] - stops[index]) * (behind - passed) / subtasks
        passed += subtasks
    return stops[-1] if total else stops[0]


def _beside(labels: Sequence[tuple[float, float]], x: float) -> float:
    """`x`, or the nearer side of the labels at `x`; labels that overlap count as one."""
    spans: list[tuple[float, float]] = []
    for left, right in sorted((left - _CLEARANCE, right + _CLEARANCE) for left, right in labels):
        if spans and left < spans[-1][1]:
            first, last = spans.pop()
            spans.append((first, max(last, right)))
        else:
            spans.append((left, right))
    for left, right in spans:
        if left < x < right:
            return left if x - left < right - x else right
    return x


def _line_positions(columns: Sequence[tuple[float, float]]) -> list[float]:
    """The line's x with 0, 1, 2 … columns behind it: the middle of each gap, and both outer edges."""
    inner = [(left[1] + right[0]) / 2 for left, right in itertools.pairwise(columns)]
    return [columns[0][0] - 10, *inner, columns[-1][1] + 10]


def _teeth(x: float, top: float, bottom: float) -> str:
    count = int((bottom - top) // _TOOTH)
    return "".join(
        f"M{x:g} {top + _TOOTH * n + 3:g}l{_DEPTH:g} {(_TOOTH - 6) / 2:g}l{-_DEPTH:g} {(_TOOTH - 6) / 2:g}z"
        for n in range(count)
    )


def _anchor(x: float, columns: Sequence[tuple[float, float]]) -> str:
    left, right = columns[0][0], columns[-1][1]
    if x - left < _CAPTION_HALF:
        return "start"
    return "end" if right - x < _CAPTION_HALF else "middle"
