"""Keyed state for the files of a savepoint: tables filled from rows, and written as segments.

This module uses no Spark. The tables are those that operators use, so hashing, type checks and file layout are those of
a running job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.core.snapshot.manifest import Segment, SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.ports import SnapshotStore
from runtime.state.files.segment_log import PendingSegment
from runtime.state.index.factorise import factorise
from runtime.state.index.hashing import hash_columns, key_groups_of_hashes
from runtime.state.index.key_index import NOT_FOUND
from runtime.state.keyed_table import KeyedTable
from runtime.state.object_table import ObjectTable
from runtime.state.proofs import complete_proof
from runtime.state.rows import segment_batches
from runtime.state.schema import manifest_columns

NO_TYPES: Final[Mapping[str, str]] = MappingProxyType({})
MAX_SHOWN_KEYS: Final = 3  #: keys named in an error
encode_key: Final = msgspec.msgpack.Encoder().encode
decode_key: Final = msgspec.msgpack.Decoder().decode


def add_rows(table: KeyedTable, keys: Sequence[pa.Array], values: Sequence[pa.Array], operator: str) -> None:
    """Inserts rows into a typed table.

    Raises:
        JobRejected: a key is duplicate, or a type does not match; operator, state and keys are named.
    """
    if not len(keys[0]):
        return
    table.bind_types([column.type for column in keys], [column.type for column in values])
    distinct = factorise(keys)
    repeated = np.ones(len(keys[0]), dtype=bool)
    repeated[distinct.first_rows] = False
    repeated |= table.find(keys) != NOT_FOUND
    if repeated.any():
        rows = pa.array(np.flatnonzero(repeated)[:MAX_SHOWN_KEYS])
        duplicates = [tuple(row) for row in zip(*(column.take(rows).to_pylist() for column in keys), strict=True)]
        raise duplicate_keys(operator, table.schema.name, duplicates)
    table.restore(keys, values)


def duplicate_keys(operator: str, state: str, keys: Iterable[Any]) -> JobRejected:
    """The error for duplicate keys. `keys`: the duplicate keys that the message shows."""
    listing = ", ".join(sorted(_format_key(key) for key in keys))
    detail = f"state {state!r} would have two rows with the same key: {listing}"
    return JobRejected("duplicate-keys", operator, detail)


def _format_key(key: Any) -> str:
    if isinstance(key, list | tuple):
        return repr(key[0]) if len(key) == 1 else repr(tuple(key))
    return repr(key)


def write_table(
    store: SnapshotStore, prefix: str, table: KeyedTable | ObjectTable, key_types: Mapping[str, str] = NO_TYPES
) -> SubtaskSnapshot:
    """Stores all rows of a table in a single file, or no file for an empty table. Returns the state of a subtask.

    `key_types`: types of the operator's key columns.
    """
    name, rows = table.schema.name, table.copy_all()
    proof = complete_proof(name, table.proof(), len(table))
    segments: tuple[Segment, ...] = ()
    if len(rows):
        file, nbytes = f"{name}-000001.arrow", len(rows) * table.row_bytes
        batches, key = (lambda _: segment_batches([rows])), table.schema.primary_key
        segments, _ = PendingSegment(file, batches, proof, proof, key, len(rows), nbytes).write(store, prefix)
    return SubtaskSnapshot(
        keyed={name: segments},
        proofs={name: dict(proof())},
        key_types=dict(key_types),
        value_types=_value_types(table) if isinstance(table, KeyedTable) else {},
        empty_tables={} if segments else {name: manifest_columns(table.schema)},
    )


def merge_states(snapshot: SubtaskSnapshot, other: SubtaskSnapshot) -> SubtaskSnapshot:
    """The snapshot of a subtask with the states of two partial snapshots."""
    return msgspec.structs.replace(
        snapshot,
        keyed=snapshot.keyed | other.keyed,
        proofs=snapshot.proofs | other.proofs,
        value_types=snapshot.value_types | other.value_types,
        key_types=snapshot.key_types | other.key_types,
        empty_tables=snapshot.empty_tables | other.empty_tables,
    )


def _value_types(table: KeyedTable) -> dict[str, str]:
    """The types of the value columns, in the manifest's spelling."""
    return {f"{table.schema.name}.{column.name}": str(column.type) for column in table.schema.values}


# ---------------------------------------------------------------- keys of Python functions


def key_groups_of(keys: Sequence[bytes], max_parallelism: int) -> npt.NDArray[np.int64]:
    """The key group of each encoded key (msgpack of its values). The original key columns give the same key group.

    The column types are not needed: integers of all widths hash by value, text and binary by bytes.
    """
    if not keys:
        return np.empty(0, dtype=np.int64)
    columns = zip(*map(decode_key, keys), strict=True)
    return key_groups_of_hashes(hash_columns([_column(values) for values in columns]), max_parallelism)


def _column(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (OverflowError, pa.ArrowInvalid):  # integers of 2^63 and above
        return pa.array(values, pa.uint64())
