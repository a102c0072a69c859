"""One operator subtask, driven by hand: the real operator and the real state, without a host."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Operator, OperatorContext
from runtime.state.backend import SubtaskState
from runtime.state.files.compaction import DEFAULT_POLICY, CompactionPolicy
from tests.manual_clock import ManualClock

UID = "op"


class Collected:
    """A collector that keeps what is emitted."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.side: list[tuple[str, pa.RecordBatch]] = []  #: by side output

    def emit(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        self.side.append((output, batch))

    def rows(self, first: int = 0) -> list[dict[str, Any]]:
        """The rows from batch `first` on."""
        return [row for batch in self.batches[first:] for row in batch.to_pylist()]


class Harness:
    """One subtask of `operator`."""

    def __init__(
        self,
        operator: Operator,
        *,
        store: MemorySnapshotStore | None = None,
        snapshots: Iterable[SubtaskSnapshot] = (),
        broadcast: SubtaskSnapshot | None = None,
        lists: Mapping[str, tuple[Any, ...]] | None = None,
        unions: Mapping[str, tuple[Any, ...]] | None = None,
        index: int = 0,
        parallelism: int = 1,
        max_parallelism: int = 16,
        clock: ManualClock | None = None,
        compaction: CompactionPolicy = DEFAULT_POLICY,
    ) -> None:
        self.operator = operator
        self.clock = clock or ManualClock()
        self.store = store or MemorySnapshotStore()
        self.out = Collected()
        groups = key_group_range(index, max_parallelism, parallelism)
        self.state = SubtaskState(groups, max_parallelism, self.store, compaction=compaction)
        subtask_snapshots = tuple(snapshots)
        restored = SubtaskRestore(
            subtask=SubtaskId(OperatorId(UID), index),
            snapshots=subtask_snapshots,
            proofs=keyed_proofs(subtask_snapshots, groups),
            broadcast=broadcast,
            lists=lists or {},
            unions=unions or {},
        )
        self.state.restore(restored)
        self.context = OperatorContext(
            job="job",
            uid=UID,
            index=index,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            token=Token(7),
            state=self.state,
            now_ms=self.clock.now_ms,
            restored=bool(subtask_snapshots),
        )
        operator.open(self.context)
        self.state.check_declarations()
        operator.start(self.out)

    def process(self, batch: pa.RecordBatch, input: int = 0) -> list[dict[str, Any]]:
        """What comes out for `batch`."""
        count = len(self.out.batches)
        self.operator.process(input, batch, self.out)
        return self.out.rows(count)

    def watermark(self, time: int) -> list[dict[str, Any]]:
        count = len(self.out.batches)
        self.operator.on_watermark(time, self.out)
        return self.out.rows(count)

    def tick(self) -> list[dict[str, Any]]:
        """What comes out when the host looks at the clock."""
        count, due = len(self.out.batches), self.operator.next_processing_timer()
        if due is not None and due <= self.clock.now_ms():
            self.operator.on_processing_time(self.clock.now_ms(), self.out)
        return self.out.rows(count)

    def finish(self, inputs: int = 1) -> list[dict[str, Any]]:
        """What comes out at a true end of all inputs."""
        count = len(self.out.batches)
        for number in range(inputs):
            self.operator.end_input(number, self.out)
        self.operator.finish(self.out)
        return self.out.rows(count)

    def snapshot(self, name: str, *, full: bool = False) -> SubtaskSnapshot:
        self.operator.snapshot(1)
        return self.state.capture(full).write(self.store, f"{name}/{self.context.index}")[0]


def by_window(row: dict[str, Any]) -> Any:
    """The start and the key `k` of an emitted window, as a sort key."""
    return row["window_start"], row["k"] is None, row["k"]


def sort_windows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The emitted windows of a subtask by start and key. Their starts must ascend already."""
    starts = [row["window_start"] for row in rows]
    assert starts == sorted(starts)
    return sorted(rows, key=by_window)
