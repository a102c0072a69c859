"""Declarations of an operator that its state depends on, and the single table of rules for their changes at a restore.

- Durations: the state of a window or session was formed by them. Under another size the restored panes would be emitted
  in other windows, some rows twice and some never. Under another gap, sessions that belong together would stay apart.
  An interval join keeps every row that may match within its bounds. So it may continue with narrower bounds; with wider
  bounds, matching rows may be gone.
- Keys: state lies under the values of the key columns. Under other columns, or another order, no row would find it. The
  rules for the types of key columns are those of `core.job.column_types`.
- Times: state holds the times of one column, or windows of them. A row with a time of another column would find the
  window fired, or an older time than that of its key, and would be dropped.
- Aggregates: a state column holds the result of one function of one column. A further aggregate would lack all earlier
  rows, and another function or column would go on from a wrong value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

WINDOW_SIZE: Final = "window size"
WINDOW_SLIDE: Final = "window slide"
SESSION_GAP: Final = "session gap"
WITHIN: Final = "within"  #: of `deduplicate`
LOWER_BOUND: Final = "lower bound"
UPPER_BOUND: Final = "upper bound"


def window_durations(size_ms: int, slide_ms: int) -> dict[str, int]:
    return {WINDOW_SIZE: size_ms, WINDOW_SLIDE: slide_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The declarations of an operator in a checkpoint or in a job. None: unknown.

    Args:
        durations: in milliseconds, by name.
        keys: by partitioned input, the names of the key columns.
        aggregates: output column and definition, such as `("total", "Sum(fare)")`, in order.
        times: by input, the column of times.
    """

    durations: Mapping[str, int]
    keys: tuple[tuple[str, ...], ...] | None = None
    aggregates: tuple[tuple[str, str], ...] | None = None
    times: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class InvalidChange:
    """A change that makes the state unreadable. `code`: of the refusal."""

    code: str
    text: str


def invalid_changes(before: Declarations, now: Declarations) -> Iterator[InvalidChange]:
    """The changes that make the state unreadable. Declarations that only one side knows are not compared."""
    for name in sorted(before.durations.keys() & now.durations.keys()):
        old_ms, new_ms = before.durations[name], now.durations[name]
        if not _is_valid(name, old_ms, new_ms):
            yield InvalidChange("window-changed", f"{name} is {old_ms} ms in the checkpoint and {new_ms} ms in the job")
    if before.keys is not None and now.keys is not None and before.keys != now.keys:
        text = f"its keys are {_key_text(before.keys)} in the checkpoint and {_key_text(now.keys)} in the job"
        yield InvalidChange("keys-changed", text)
    if before.times is not None and now.times is not None and before.times != now.times:
        text = f"its times are {_column_text(before.times)} in the checkpoint and {_column_text(now.times)} in the job"
        yield InvalidChange("times-changed", text)
    if before.aggregates is not None and now.aggregates is not None:
        for text in _changed_aggregates(dict(before.aggregates), dict(now.aggregates)):
            yield InvalidChange("aggregates-changed", text)


def _key_text(keys: tuple[tuple[str, ...], ...]) -> str:
    return "; ".join(", ".join(names) for names in keys) or "none"


def _column_text(columns: tuple[str, ...]) -> str:
    return ", ".join(columns) or "of no column"


def _changed_aggregates(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name, definition in before.items():
        if name not in now:
            yield f"aggregate {name!r}, {definition}, is not in the job"
        elif definition != now[name]:
            yield f"aggregate {name!r} is {definition} in the checkpoint and {now[name]} in the job"
    yield from (
        f"aggregate {name!r}, {definition}, is not in the checkpoint"
        for name, definition in now.items()
        if name not in before
    )
    if before.keys() == now.keys() and list(before) != list(now):
        yield f"aggregates: their order is {', '.join(before)} in the checkpoint and {', '.join(now)} in the job"


def _is_valid(name: str, before: int, now: int) -> bool:
    """Whether state that was formed by a duration of `before` ms can be read under `now` ms."""
    if name == LOWER_BOUND:
        return now >= before
    return now <= before if name == UPPER_BOUND else now == before
