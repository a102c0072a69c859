"""The types of the key columns of an operator subtask: the restored types, widened by the types of its batches.

Every snapshot records the types, so that `core.restore.mapping` refuses a restore with other types before the start. If
a job's types are known from its data only, the first batch is refused instead.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from runtime.core.job.column_types import key_rule
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.state.index.key_codec import check_key_type, plain_type


class KeyTypes:
    """Key column types. Mutable, owned by a single subtask.

    Args:
        operator: the uid, for errors.
        restored: the snapshots whose keys the subtask continues.
    """

    def __init__(self, operator: str = "", restored: Iterable[SubtaskSnapshot] = ()) -> None:
        self._operator = operator
        self._by_column: dict[str, str] = {}
        self._checked_schema: pa.Schema | None = None
        for snapshot in restored:
            for column, name in snapshot.key_types.items():
                self._add(column, name)

    def by_column(self) -> dict[str, str]:
        """A copy of the types by column, for a snapshot."""
        return dict(self._by_column)

    def check(self, schema: pa.Schema, keys: Sequence[str]) -> None:
        """Widens the known types by the key types of a batch.

        Raises:
            JobRejected: the two types of a column have no common type; the error names operator, column and types.
        """
        if self._checked_schema is not None and schema.equals(self._checked_schema):
            return
        for column in keys:
            self._add(column, str(plain_type(schema.field(column).type)))
        self._checked_schema = schema

    def _add(self, column: str, name: str) -> None:
        state_type = self._by_column.get(column, name)
        common = key_rule(state_type, name).common
        if common is None:
            detail = f"key column {column!r} is {state_type} in the state and {name} in the data"
            raise JobRejected("key-type-changed", self._operator, detail)
        self._by_column[column] = common


def check_keys(schema: pa.Schema, keys: Sequence[str], operator: str) -> None:
    """Checks the key columns of the rows that `operator` reads.

    Raises:
        JobRejected: a column is missing, or its type cannot be a key; the error names operator, column and type.
    """
    for column in keys:
        if column not in schema.names:
            detail = f"there is no such key column for operator {operator!r}; there are {', '.join(schema.names)}"
            raise JobRejected("unknown-column", column, detail)
        try:
            check_key_type(column, schema.field(column).type)
        except JobRejected as error:
            raise JobRejected(error.code, error.field, f"{error.detail} (operator {operator!r})") from None
