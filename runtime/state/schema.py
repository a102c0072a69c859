"""What a table's columns are: keys, namespaces and values, some of them known only when the first rows come.

An operator declares its state in `open`, before it has seen a batch. A column whose type it cannot know yet is declared
with type null; the first batch, or what is restored, settles it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from runtime.core.snapshot.manifest import TableColumns
from runtime.errors import JobRejected
from runtime.state.columns import storage_dtype
from runtime.state.index.key_codec import check_key_type, common_key_type, common_value_type, plain_type

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
        """The schema in which the rows there are and rows of these types go on (`core.job.column_types`).

        Raises:
            JobRejected: a type cannot be a key, or is refused beside the type in the state; the column is named.
        """
        for field, kind in zip(self.keys, keys, strict=True):
            check_key_type(field.name, kind)
        found_keys = [self._agree(field, kind, common_key_type) for field, kind in zip(self.keys, keys, strict=True)]
        found_values = [
            self._agree(field, kind, common_value_type) for field, kind in zip(self.values, values, strict=True)
        ]
        for field in found_values:
            if not pa.types.is_null(field.type):
                storage_dtype(field.type)
        return TableSchema(self.name, pa.schema(found_keys), pa.schema(found_values))

    def _agree(self, field: pa.Field, kind: Any, common_type: Callable[[Any, Any], Any]) -> pa.Field:
        common = common_type(field.type, kind)
        if common is None:
            detail = f"column {field.name!r} is {field.type} in the state and {plain_type(kind)} in the data"
            raise JobRejected("state-type-changed", self.name, detail)
        return field.with_type(common)


def columns_of(schema: TableSchema) -> TableColumns:
    """The columns as a manifest names them."""
    keys, values = (
        {field.name: str(plain_type(field.type)) for field in part} for part in (schema.keys, schema.values)
    )
    return TableColumns(keys, values)
