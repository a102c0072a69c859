"""The states of a checkpoint, read from its manifest: operator, name, kind, size, and the view for SQL."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from runtime.core.snapshot.manifest import Manifest, OperatorSnapshot, Segment, SubtaskSnapshot

CONTENTS_VIEW: Final = "contents"  #: the view of the manifest itself, with list elements and pending committables
_NOT_IN_NAMES: Final = re.compile(r"\W+", re.ASCII)


class StateKind(StrEnum):
    """The kind of a state, which decides its redistribution at a restore."""

    KEYED = "keyed"
    BROADCAST = "broadcast"
    LIST = "list"
    UNION = "union"
    IN_FLIGHT = "in flight"  #: rows that a barrier overtook, by their sender; see `RowsInFlight`

    @property
    def has_rows(self) -> bool:
        """Whether the state is stored as rows in state files, which `weir-state` reads; lists are in the manifest."""
        return self in (StateKind.KEYED, StateKind.BROADCAST)

    @property
    def has_files(self) -> bool:
        return self.has_rows or self is StateKind.IN_FLIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """A state of an operator, over all its subtasks.

    `rows` counts rows of state files (a key that has changed since the last compaction counts once per file) or
    elements of a list. Broadcast state counts a single copy. `keys` maps the key columns to their Arrow types.
    """

    operator: str
    name: str
    kind: StateKind
    subtasks: int
    rows: int
    nbytes: int
    keys: Mapping[str, str]

    @property
    def view(self) -> str:
        """The name of the view in SQL; "" for a list or rows in flight, which have none."""
        return _NOT_IN_NAMES.sub("_", f"{self.operator}_{self.name}") if self.kind.has_rows else ""


def stored_states(manifest: Manifest) -> tuple[StoredState, ...]:
    """All states of a checkpoint, by operator and name."""
    states = (state for uid, operator in sorted(manifest.operators.items()) for state in _states_of(uid, operator))
    return tuple(states)


def _states_of(uid: str, operator: OperatorSnapshot) -> list[StoredState]:
    subtasks = [snapshot for _, snapshot in sorted(operator.subtasks.items())]
    keys = next((snapshot.key_types for snapshot in subtasks if snapshot.key_types), {})
    by_name: dict[tuple[str, StateKind], list[tuple[Any, ...]]] = {}
    for snapshot in subtasks:
        for kind, parts in _parts(snapshot):
            for name, part in parts.items():
                by_name.setdefault((name, kind), []).append(part)
    return [_stored_state(uid, name, kind, parts, keys) for (name, kind), parts in sorted(by_name.items())]


def _parts(snapshot: SubtaskSnapshot) -> Iterable[tuple[StateKind, Mapping[str, tuple[Any, ...]]]]:
    yield StateKind.KEYED, snapshot.keyed
    yield StateKind.BROADCAST, snapshot.broadcast
    yield StateKind.LIST, snapshot.lists
    yield StateKind.UNION, snapshot.unions
    yield StateKind.IN_FLIGHT, {rows.name: rows.segments for rows in snapshot.in_flight}


def _stored_state(
    uid: str, name: str, kind: StateKind, parts: list[tuple[Any, ...]], keys: Mapping[str, str]
) -> StoredState:
    counted = [part for part in parts if part][:1] if kind is StateKind.BROADCAST else parts
    files: list[Segment] = [each for part in counted for each in part] if kind.has_files else []
    rows = sum(file.rows for file in files) if kind.has_files else sum(map(len, parts))
    return StoredState(
        operator=uid, name=name, kind=kind, subtasks=len(parts), rows=rows, nbytes=sum(file.nbytes for file in files),
        keys=keys if kind is StateKind.KEYED else {},
    )  # fmt: skip
