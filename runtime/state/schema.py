"""What a table's columns are: keys, namespaces and values, some of them known only when the first rows come.

An operator declares its state in `open`, before it has seen a batch. A column whose type it cannot know yet is declared
with type null; the first batch, or what is restored, settles it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.columns import storage_dtype
from runtime.state.keycodes import family, plain_type

UNSETTLED: Final = pa.null()
_NAMESPACE: Final = {b"weir": b"namespace"}


def namespace_field(name: str, kind: Any) -> pa.Field:
    """A key column that does not decide the key group: the window of a key lives where the key lives."""
    return pa.field(name, kind, metadata=_NAMESPACE)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns of a keyed table. Namespaces are those keys that do not decide the key group."""

    name: str
    keys: pa.Schema
    values: pa.Schema

    @property
    def settled(self) -> bool:
        return not any(pa.types.is_null(field.type) for field in (*self.keys, *self.values))

    def describe(self) -> str:
        """The columns in words, for messages."""
        return ", ".join(f"{field.name} {field.type}" for field in (*self.keys, *self.values))

    @property
    def partition_columns(self) -> tuple[int, ...]:
        """The positions of the key columns that decide the key group."""
        return tuple(i for i, field in enumerate(self.keys) if (field.metadata or {}).get(b"weir") != b"namespace")

    def settle(self, keys: Sequence[Any], values: Sequence[Any]) -> "TableSchema":
        """Takes over types where they were open, and checks them where they were not.

        Raises:
            JobRejected: the state holds another type than the data has; the column is named.
        """
        found_keys = [self._agree(field, plain_type(kind)) for field, kind in zip(self.keys, keys, strict=True)]
        found_values = [self._agree(field, kind) for field, kind in zip(self.values, values, strict=True)]
        for field in found_values:
            if not pa.types.is_null(field.type):
                storage_dtype(field.type)
        return TableSchema(self.name, pa.schema(found_keys), pa.schema(found_values))

    def _agree(self, field: pa.Field, kind: Any) -> pa.Field:
        if pa.types.is_null(field.type):
            return field.with_type(kind)
        if pa.types.is_null(kind) or family(field.type) == family(kind):
            return field
        detail = f"column {field.name!r} is {field.type} in the state and {kind} in the data"
        raise JobRejected("state-type-changed", self.name, detail)
