"""The heat map of the load of operators: a row per operator, a cell per interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from console import formats
from console.formats import Quantity
from console.metrics.selectors import Columns
from console.ui.plots import shapes

MAX_ROWS: Final = 40  #: operators in the heat map
LEVELS: Final = 4  #: of the heat map
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  #: 0 to 100 % in steps of 4 %


@dataclass(frozen=True, slots=True)
class LoadRow:
    """An operator in the heat map, and in its table. `codes`: two letters an interval, busy and backpressured."""

    name: str
    y: int
    codes: str
    busy: Quantity  #: mean
    backpressured: Quantity  #: mean
    most_backpressured: Quantity


@dataclass(frozen=True, slots=True)
class LoadPlot:
    box: str
    height: int
    begin_ms: int
    step_ms: int
    layers: tuple[tuple[str, str], ...]
    rows: tuple[LoadRow, ...]
    left_out: int


def most_loaded(operators: Sequence[tuple[str, str]], history: Any) -> list[tuple[str, str]]:
    """The operators with the highest load, at most `MAX_ROWS`, in their own order."""
    if len(operators) <= MAX_ROWS:
        return list(operators)
    highest = {uid: max(mean(history[uid][name]) or 0.0 for name in ("busy", "backpressured")) for uid, _ in operators}
    uids = set(sorted(highest, key=lambda uid: -highest[uid])[:MAX_ROWS])
    return [(uid, name) for uid, name in operators if uid in uids]


def load_layers(operators: Sequence[Columns]) -> tuple[tuple[str, str], ...]:
    """A path for each level of each of busy and backpressured, whichever is higher, and one for known intervals."""
    paths: dict[str, list[str]] = {"known": []}
    for name in ("busy", "pressed"):
        paths.update({f"{name} level-{level}": [] for level in range(1, LEVELS + 1)})
    for row, columns in enumerate(operators):
        coverage = [busy is not None for busy in columns["busy"]]
        loads = list(map(_load_class, columns["busy"], columns["backpressured"]))
        paths["known"] += [path for is_known, path in shapes.cells(row, coverage) if is_known]
        for load, path in shapes.cells(row, loads):
            if load:
                paths[str(load)].append(path)
    return tuple((name, "".join(parts)) for name, parts in paths.items() if parts)


def _load_class(busy: float | None, blocked: float | None) -> str:
    """The class of a cell; '' if the load is too low to be drawn."""
    name, level = ("busy", _level(busy)) if (busy or 0) > (blocked or 0) else ("pressed", _level(blocked))
    return f"{name} level-{level}" if level else ""


def _level(share: float | None) -> int:
    return round((share or 0.0) * LEVELS)


def load_row(y: int, name: str, columns: Columns) -> LoadRow:
    codes = (
        _code(busy) + _code(blocked) for busy, blocked in zip(columns["busy"], columns["backpressured"], strict=True)
    )
    return LoadRow(
        name, y, "".join(codes), formats.percent(mean(columns["busy"])),
        formats.percent(mean(columns["backpressured"])), formats.percent(highest(columns["backpressured"])),
    )  # fmt: skip


def _code(share: float | None) -> str:
    return "-" if share is None else _LETTERS[round(min(max(share, 0.0), 1.0) * 25)]


def mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def highest(values: Sequence[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
