"""Broadcast state: identical on every subtask of an operator.

`BroadcastTable` holds rows that are added, or replaced as a whole, such as the build side of a join. `BroadcastMap`
holds entries that are added, changed and deleted, such as rules. After a restore every subtask holds the copy of a
single running subtask.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.object_table import ObjectTable, map_place
from runtime.state.own_memory import with_own_memory
from runtime.state.primary_key import BROADCAST_GROUP
from runtime.state.proofs import LazyProof, ProofSums, add_broadcast_rows
from runtime.state.values import encode

_BROADCAST_KEY: Final = msgspec.msgpack.encode(None)  #: broadcast entries have no key either
BROADCAST_GROUPS: Final = range(BROADCAST_GROUP, BROADCAST_GROUP + 1)


class BroadcastTable:
    """Batches in the order of arrival.

    Args:
        name: name of the state.
        batches: the restored batches.
    """

    def __init__(self, name: str, batches: Iterable[pa.RecordBatch] = ()) -> None:
        self._name = name
        self._batches = list(batches)
        self._captured = 0  #: number of leading batches that were captured
        self.needs_base = False  #: the captured batches were replaced: the next capture must copy all rows
        self._proof = ProofSums()
        for batch in self._batches:
            add_broadcast_rows(self._proof, batch)

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    @property
    def batches(self) -> tuple[pa.RecordBatch, ...]:
        return tuple(self._batches)

    def append(self, batch: pa.RecordBatch) -> None:
        """Adds rows.

        Raises:
            JobRejected: the schema differs from the schema of the earlier rows.
        """
        if self._batches and not batch.schema.equals(self._batches[0].schema):
            raise JobRejected("state-type-changed", self._name, "the columns of this broadcast state have changed")
        add_broadcast_rows(self._proof, batch)
        self._batches.append(with_own_memory(batch))

    def take_over(self, other: "BroadcastTable") -> None:
        """Replaces all rows by those of `other`, which is empty afterwards."""
        self._batches, self._proof, self.needs_base = other._batches, other._proof, True
        other.clear()

    def clear(self) -> None:
        """Removes all rows."""
        self._batches, self._captured, self._proof, self.needs_base = [], 0, ProofSums(), True

    def table(self) -> pa.Table | None:
        """All rows; None before the first batch, when the columns are unknown."""
        return pa.Table.from_batches(self._batches) if self._batches else None

    def proof(self) -> LazyProof:
        """The proof of all rows."""
        return self._proof.copy().proof

    def changes_proof(self) -> LazyProof:
        """The proof of the rows that were added since the last capture."""
        sums = ProofSums()
        for batch in self._batches[self._captured :]:
            add_broadcast_rows(sums, batch)
        return sums.proof

    def capture_all(self) -> list[pa.RecordBatch]:
        self._captured, self.needs_base = len(self._batches), False
        return list(self._batches)

    def capture_changes(self) -> list[pa.RecordBatch]:
        added = self._batches[self._captured :]
        self._captured = len(self._batches)
        return added


class BroadcastMap(MutableMapping[Any, Any]):
    """Entries by key, in the order of writing; used like a dictionary.

    Keys are str, int or bytes. Values are JSON or bytes, and are copied when written: to change a value, read
    it and write it back. The author must ensure that all subtasks make the same changes.

    Args:
        table: holds the entries and marks the changed entries.
    """

    def __init__(self, table: ObjectTable) -> None:
        self.table = table

    def __getitem__(self, key: Any) -> Any:
        data = self._entries().get(map_place(key))
        if data is None:
            raise KeyError(key)
        return msgspec.msgpack.decode(data)

    def __setitem__(self, key: Any, value: Any) -> None:
        stored = encode(self.table.schema.name, value)
        self.table.put((BROADCAST_GROUP, _BROADCAST_KEY, map_place(key)), stored)

    def __delitem__(self, key: Any) -> None:
        place = map_place(key)
        if place not in self._entries():
            raise KeyError(key)
        self.table.delete((BROADCAST_GROUP, _BROADCAST_KEY, place))

    def __iter__(self) -> Iterator[Any]:
        return iter([msgspec.msgpack.decode(place) for place in self._entries() if isinstance(place, bytes)])

    def __len__(self) -> int:
        return len(self._entries())

    def clear(self) -> None:
        for place in list(self._entries()):
            self.table.delete((BROADCAST_GROUP, _BROADCAST_KEY, place))

    def _entries(self) -> dict[Any, Any]:
        return self.table.entries_of(BROADCAST_GROUP, _BROADCAST_KEY)
