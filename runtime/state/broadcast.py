"""Broadcast state: what every subtask holds alike.

`BroadcastTable` has rows, such as the build side of a join, that are only ever added; `BroadcastMap` has entries that
come, change and go, such as rules. After a restore every subtask has the copy of one of those that were running.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.object_table import ObjectTable, place_of
from runtime.state.values import check_storable, not_storable

_GROUP: Final = 0  #: broadcast entries have no key group of their own
_KEY: Final = msgspec.msgpack.encode(None)  #: nor do they belong to a key
EVERYWHERE: Final = range(_GROUP, _GROUP + 1)


class BroadcastTable:
    """Batches in the order in which they came.

    Args:
        name: of the state.
        batches: what was restored.
    """

    def __init__(self, name: str, batches: Iterable[pa.RecordBatch] = ()) -> None:
        self._name = name
        self._batches = list(batches)
        self._captured = 0  #: so many batches are in the chain

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    @property
    def batches(self) -> tuple[pa.RecordBatch, ...]:
        return tuple(self._batches)

    def append(self, batch: pa.RecordBatch) -> None:
        """Adds rows.

        Raises:
            JobRejected: their schema is not that of the rows before.
        """
        if self._batches and not batch.schema.equals(self._batches[0].schema):
            raise JobRejected("state-type-changed", self._name, "the columns of this broadcast state have changed")
        self._batches.append(batch)

    def table(self) -> pa.Table | None:
        """All rows; None when none ever came, since then the columns are not known."""
        return pa.Table.from_batches(self._batches) if self._batches else None

    def capture_all(self) -> list[pa.RecordBatch]:
        self._captured = len(self._batches)
        return list(self._batches)

    def capture_changes(self) -> list[pa.RecordBatch]:
        added = self._batches[self._captured :]
        self._captured = len(self._batches)
        return added


class BroadcastMap(MutableMapping[Any, Any]):
    """Entries by key, in the order in which they were written; used like a dictionary.

    Keys are text, integers or bytes. Values are JSON values (and bytes), copied when they are put: a change to what was
    got counts when it is put back. It is up to the author that all subtasks do the same with it.

    Args:
        table: holds the entries, and knows what has changed since the last capture.
    """

    def __init__(self, table: ObjectTable) -> None:
        self.table = table

    def __getitem__(self, key: Any) -> Any:
        found = self._entries().get(place_of(key))
        if found is None:
            raise KeyError(key)
        return msgspec.msgpack.decode(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        check_storable(self.table.schema.name, value)
        try:
            stored = msgspec.msgpack.encode(value)
        except (ValueError, OverflowError) as error:
            raise not_storable(self.table.schema.name, error) from error
        self.table.put((_GROUP, _KEY, place_of(key)), stored)

    def __delitem__(self, key: Any) -> None:
        place = place_of(key)
        if place not in self._entries():
            raise KeyError(key)
        self.table.delete((_GROUP, _KEY, place))

    def __iter__(self) -> Iterator[Any]:
        return iter([msgspec.msgpack.decode(place) for place in self._entries() if isinstance(place, bytes)])

    def __len__(self) -> int:
        return len(self._entries())

    def clear(self) -> None:
        for place in list(self._entries()):
            self.table.delete((_GROUP, _KEY, place))

    def _entries(self) -> dict[Any, Any]:
        return self.table.under(_GROUP, _KEY)
