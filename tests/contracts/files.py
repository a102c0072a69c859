"""Source readers driven by hand, for the tests of sources: the real reader and state over real files."""

import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.restore.state_assignment import (
    SubtaskRestore,
    _broadcast_snapshot,
    _redistribute_lists,
    _union_lists,
    keyed_proofs,
)
from runtime.core.snapshot.manifest import FinishedState, OperatorSnapshot, SubtaskSnapshot
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import OperatorContext, Source
from runtime.state.backend import SubtaskState
from tests.manual_clock import ManualClock

GROUPS = 128
INTERVAL_MS = 200


def drop(folder: Path, name: str, content: str | bytes) -> None:
    """Puts a file into place as writers must: written beside, then renamed."""
    data = content.encode() if isinstance(content, str) else content
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.tmp"
    temporary.write_bytes(data)
    temporary.rename(folder / name)


class Reading:
    """One subtask of a source. Its reader is closed at the latest when the subtask is collected, as a crash does."""

    def __init__(
        self,
        source: Source,
        *,
        store: MemorySnapshotStore | None = None,
        snapshots: Iterable[SubtaskSnapshot] = (),
        index: int = 0,
        parallelism: int = 1,
        token: int = 1,
        clock: ManualClock | None = None,
        groups: int = GROUPS,
    ) -> None:
        self.store = store or MemorySnapshotStore()
        self.clock = clock or ManualClock(1_000_000)
        key_groups = key_group_range(index, groups, parallelism)
        self.state = SubtaskState(key_groups, groups, self.store)
        subtask_snapshots = tuple(snapshots)
        before = OperatorSnapshot(
            parallelism=max(len(subtask_snapshots), 1),
            finished=FinishedState.RUNNING,
            subtasks=dict(enumerate(subtask_snapshots)),
        )
        lists = _redistribute_lists(before, index, parallelism)
        self.state.restore(
            SubtaskRestore(
                subtask=SubtaskId(OperatorId("files"), index),
                snapshots=subtask_snapshots,
                proofs=keyed_proofs(subtask_snapshots, key_groups),
                lists=lists,
                unions=_union_lists(before),
                broadcast=_broadcast_snapshot(before),
            )
        )
        self.context = OperatorContext(
            job="job",
            uid="files",
            index=index,
            parallelism=parallelism,
            max_parallelism=groups,
            token=Token(token),
            state=self.state,
            now_ms=self.clock.now_ms,
            restored=bool(subtask_snapshots),
        )
        self.reader = source.reader()
        weakref.finalize(self, self.reader.close).atexit = False
        self.reader.open(self.context)
        self.state.check_declarations()

    def poll(self, max_rows: int = 1000) -> pa.RecordBatch | None:
        return self.reader.poll(max_rows)

    def rows(self, max_rows: int = 1000) -> list[dict[str, Any]]:
        """Everything that is there now."""
        self.clock.advance(INTERVAL_MS)
        rows: list[dict[str, Any]] = []
        while (batch := self.reader.poll(max_rows)) is not None:
            assert 0 < batch.num_rows <= max_rows
            rows += batch.to_pylist()
        return rows

    def exhausted(self) -> bool:
        return self.reader.exhausted

    def snapshot(self, name: str) -> SubtaskSnapshot:
        self.reader.snapshot(1)
        return self.state.capture(False).write(self.store, f"{name}/{self.context.index}")[0]
