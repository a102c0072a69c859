"""The files of snapshots: a small table of each subtask, and the manifests that name them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import job_uri
from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot
from runtime.io.filesystem import FileStore
from runtime.io.manifests import write_manifest
from runtime.state.index.hashing import key_groups
from runtime.state.keyed_table import KeyedTable
from runtime.state.schema import TableSchema
from spark_jobs.savepoints.state_tables import add_rows, write_table

ROWS: Final = 1_500  #: of an operator
_SCHEMA: Final = TableSchema(
    "totals", pa.schema([("id", pa.int64())]), pa.schema([("count", pa.int64()), ("sum", pa.float64())])
)


def store_snapshots(rows: Iterable[Checkpoint], graph: Mapping[str, Any]) -> None:
    """Writes the manifests and files of the snapshots `rows`, for the operators of a compiled version's `graph`.

    Checkpoints share the files of the first, as incremental checkpoints do. A savepoint has its own.
    """
    groups: int = graph["max_parallelism"]
    operators: dict[CheckpointKind, dict[str, OperatorSnapshot]] = {}
    for row in rows:
        kind, store = CheckpointKind(row.kind), FileStore(job_uri(row.job_id))
        if kind.is_savepoint or kind not in operators:
            operators[kind] = {each["uid"]: _operator(store, row.path, each, groups) for each in graph["operators"]}
        manifest = Manifest(
            job=str(row.job_id), checkpoint=row.number, kind=kind, token=row.token,
            triggered_at=round(row.triggered_at.timestamp() * 1000), max_parallelism=groups, operators=operators[kind],
        )  # fmt: skip
        folder, _ = write_manifest(store, manifest)
        assert folder == row.path, f"the row names {row.path}, and the manifest is in {folder}"


def _operator(store: FileStore, folder: str, operator: Mapping[str, Any], groups: int) -> OperatorSnapshot:
    uid, parallelism = operator["uid"], operator["parallelism"]
    rows = pa.record_batch({"id": np.arange(ROWS), "count": np.arange(ROWS), "sum": np.linspace(0.0, 1.0, ROWS)})
    group_of_row = key_groups(rows, ["id"], groups)
    subtasks = {}
    for index in range(parallelism):
        group_range = key_group_range(index, groups, parallelism)
        part = rows.filter(pa.array((group_of_row >= group_range.start) & (group_of_row < group_range.stop)))
        table = KeyedTable(_SCHEMA, groups)
        add_rows(table, part.columns[:1], part.columns[1:], uid)
        subtasks[index] = write_table(store, f"{folder}/{uid}-{index}", table, {"id": "int64"})
    return OperatorSnapshot(parallelism=parallelism, finished=FinishedState.RUNNING, subtasks=subtasks)
