"""A savepoint made with the file store alone: typed tables of any size, without a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, SubtaskSnapshot, folder_of
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, encode_manifest
from runtime.io.filesystem import FileStore
from runtime.state.index.hashing import key_groups
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import TableSchema, namespace_field
from spark_jobs.savepoints.state_tables import add_rows, write_table

MAX_PARALLELISM: Final = 128
KIND: Final = CheckpointKind.SAVEPOINT


@dataclass(frozen=True)
class Stored:
    """Rows of one state. The key group follows from `keys`; `namespaces` are further key columns."""

    rows: pa.RecordBatch
    keys: Sequence[str]
    namespaces: Sequence[str] = ()


def store_savepoint(root: Path, states: Mapping[tuple[str, str], Stored], parallelism: int = 2) -> Path:
    """The folder of savepoint 3 of attempt 1, with `states` by operator and name."""
    folder, store = folder_of(KIND, 3, 1), FileStore(root)
    operators: dict[str, OperatorSnapshot] = {}
    for (uid, name), stored in states.items():
        parts = {
            index: _subtask(
                store, f"{folder}/{uid}-{index}", name, stored, key_group_range(index, MAX_PARALLELISM, parallelism)
            )
            for index in range(parallelism)
        }
        operators[uid] = OperatorSnapshot(parallelism=parallelism, finished=FinishedState.RUNNING, subtasks=parts)
    manifest = Manifest(
        job=root.name, checkpoint=3, kind=KIND, token=1, triggered_at=0, max_parallelism=MAX_PARALLELISM,
        operators=operators,
    )  # fmt: skip
    store.put(f"{folder}/{MANIFEST_FILE}", [encode_manifest(manifest)])
    return root / folder


def _subtask(store: FileStore, prefix: str, name: str, stored: Stored, groups: range) -> SubtaskSnapshot:
    row_groups = key_groups(stored.rows, stored.keys, MAX_PARALLELISM)
    part = stored.rows.filter(pa.array((row_groups >= groups.start) & (row_groups < groups.stop)))
    keys = [pa.field(key, part.schema.field(key).type) for key in stored.keys]
    keys += [namespace_field(key, part.schema.field(key).type) for key in stored.namespaces]
    names = {field.name for field in keys}
    values = pa.schema([field for field in part.schema if field.name not in names])
    table = KeyedTable(TableSchema(name, pa.schema(keys), values), MAX_PARALLELISM)
    add_rows(table, [part.column(key.name) for key in keys], [part.column(value.name) for value in values], prefix)
    types = {key: str(part.schema.field(key).type) for key in stored.keys}
    return write_table(store, prefix, table, types)
