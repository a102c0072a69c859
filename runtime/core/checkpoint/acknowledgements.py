"""The acknowledgements of a checkpoint as columns, for display. Failed checkpoints and checkpoints under way have them
too: the columns name every subtask that takes part, and have no numbers for the missing acknowledgements.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from runtime.core.job.ids import SubtaskId
from runtime.core.snapshot.manifest import SnapshotTimings

#: Phases of a subtask's snapshot, in the order in which they happen.
PHASES: Final = ("start_delay", "alignment", "pre_barrier", "sync", "async")
_NUMBERS: Final = ("at_ms", *(f"{phase}_ms" for phase in PHASES), "written_bytes", "state_bytes")

#: By operator: a list per number, with an entry per subtask; `index` has the indexes of the subtasks.
Columns = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class SubtaskProgress:
    """A subtask that takes part in a checkpoint.

    Args:
        at_ms: time from the trigger to the acknowledgement. None: the acknowledgement is missing.
        state_bytes: size of all files that its snapshot names.
    """

    subtask: SubtaskId
    at_ms: int | None = None
    timings: SnapshotTimings = SnapshotTimings()
    state_bytes: int = 0


def as_columns(progress: Iterable[SubtaskProgress]) -> Columns:
    """The acknowledgements by operator. Times are in ms, rounded to 0.1 ms."""
    columns: Columns = {}
    for entry in progress:
        lists = columns.setdefault(str(entry.subtask.operator), {name: [] for name in ("index", *_NUMBERS)})
        lists["index"].append(entry.subtask.index)
        for name in _NUMBERS:
            lists[name].append(None if entry.at_ms is None else _number(entry, name))
    return columns


def _number(entry: SubtaskProgress, name: str) -> float:
    number: float = getattr(entry if name in ("at_ms", "state_bytes") else entry.timings, name)
    return round(number, 1)
