"""Table schemas: keys, namespaces and values. A type may stay open until the first rows arrive.

An operator declares its state in `open`, before the first batch. A column of unknown type is declared with type null;
the first batch or a restore binds it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from runtime.core.snapshot.manifest import TableColumns
from runtime.errors import JobRejected
from runtime.state.columns import storage_dtype
from runtime.state.index.key_codec import check_key_type, common_key_type, common_value_type, plain_type
from runtime.state.primary_key import PrimaryKey

OPEN_TYPE: Final = pa.null()
_NAMESPACE: Final = {b"weir": b"namespace"}


def namespace_field(name: str, kind: Any) -> pa.Field:
    """A key column that does not take part in the key group: all windows of a key lie in the same key group."""
    return pa.field(name, kind, metadata=_NAMESPACE)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns of a keyed table. Namespaces are key columns that do not take part in the key group."""

    name: str
    keys: pa.Schema
    values: pa.Schema

    @property
    def is_typed(self) -> bool:
        return not any(pa.types.is_null(field.type) for field in (*self.keys, *self.values))

    def describe(self) -> str:
        """The columns and their types, for error texts."""
        return ", ".join(f"{field.name} {field.type}" for field in (*self.keys, *self.values))

    @property
    def primary_key(self) -> PrimaryKey:
        return PrimaryKey(len(self.keys))

    @property
    def partition_columns(self) -> tuple[int, ...]:
        """Positions of the key columns that determine the key group."""
        return tuple(i for i, field in enumerate(self.keys) if (field.metadata or {}).get(b"weir") != b"namespace")

    def bind_types(self, keys: Sequence[Any], values: Sequence[Any]) -> "TableSchema":
        """The schema for the present rows and for rows of types `keys` and `values` (rules: `core.job.column_types`).

        Raises:
            JobRejected: a type cannot be a key, or has no common type with the state; the error names the column.
        """
        for field, kind in zip(self.keys, keys, strict=True):
            check_key_type(field.name, kind)
        found_keys = [
            self._common_field(field, kind, common_key_type) for field, kind in zip(self.keys, keys, strict=True)
        ]
        found_values = [
            self._common_field(field, kind, common_value_type) for field, kind in zip(self.values, values, strict=True)
        ]
        for field in found_values:
            if not pa.types.is_null(field.type):
                storage_dtype(field.type)
        return TableSchema(self.name, pa.schema(found_keys), pa.schema(found_values))

    def _common_field(self, field: pa.Field, kind: Any, common_type: Callable[[Any, Any], Any]) -> pa.Field:
        common = common_type(field.type, kind)
        if common is None:
            detail = f"column {field.name!r} is {field.type} in the state and {plain_type(kind)} in the data"
            raise JobRejected("state-type-changed", self.name, detail)
        return field.with_type(common)


def manifest_columns(schema: TableSchema) -> TableColumns:
    """The column names and types of `schema`, as a manifest stores them."""
    keys, values = (
        {field.name: str(plain_type(field.type)) for field in part} for part in (schema.keys, schema.values)
    )
    return TableColumns(keys, values)
