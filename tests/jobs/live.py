"""Jobs on the local host that are asked something while they run, and what the manifests of a job hold."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.clock import SystemClock
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.restart_strategy import FixedDelay, RestartStrategy
from runtime.core.job.settings import CoordinatorSettings, RetentionPolicy
from runtime.core.restore.state_assignment import SubtaskRestore, keyed_proofs
from runtime.core.snapshot.manifest import Manifest, SubtaskSnapshot
from runtime.dataflow.plan import CompiledJob
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.store import open_store
from runtime.launch.local import LocalLauncher
from runtime.master import live_report
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.launcher import Launcher
from runtime.operators.aggregates import Count, Sum
from runtime.operators.running_aggregate import RunningAggregate
from runtime.ports import Operator, OperatorContext, SnapshotStore
from runtime.slot import slot
from runtime.state.backend import SubtaskState
from tests.small_states import HEARTBEAT_INTERVAL_S
from tests.waiting import until

FAST = CoordinatorSettings(interval_ms=30, min_pause_ms=0)
LIVE_INTERVAL_MS = 100  #: tests wait for the figures of live reports, which otherwise come once a second
PATIENCE_S = 120.0  #: nothing here is about speed


@dataclass
class Run:
    """A job master in a thread."""

    master: JobMaster
    records: MemoryRunStore
    thread: threading.Thread
    exit: list[MasterExitCode]

    def wait_for(self, what: Callable[[], Any]) -> None:
        """As long as the master is there: what it has not done by its end will not come."""

        def is_reached() -> bool:
            if what():
                return True
            assert self.thread.is_alive() or what(), f"the master ended: {self.exit}, {self.records.failure}"
            return False

        until(is_reached, PATIENCE_S, or_else=lambda: f"but {self.records.state}, {self.records.live}")

    def checkpoints(self, count: int = 1) -> None:
        """Waits for `count` completed checkpoints that begin from now on."""
        newest = max((report.checkpoint for report in self.records.reports), default=0)
        self.wait_for(lambda: sum(m.checkpoint > newest for m in self.manifests) >= count)

    def operator(self, uid: str) -> Mapping[str, Any]:
        report: Mapping[str, Any] = self.records.live.get("operators", {}).get(uid, {})
        return report

    @property
    def manifests(self) -> list[Manifest]:
        return [completed.manifest for completed in self.records.completed]

    def ask(self, kind: str) -> None:
        self.records.operations.append(OperationRequest(kind, kind))
        self.master.poke()

    def join(self) -> MasterExitCode:
        """Pokes now and then, as the listener of a run does."""
        deadline = time.monotonic() + PATIENCE_S
        while self.thread.is_alive():
            assert time.monotonic() < deadline, f"it goes on: {self.records.state}, {self.records.live}"
            self.master.poke()
            self.thread.join(0.2)
        return self.exit[0]

    def end(self, kind: str) -> str:
        """Asks for a stop, drain or cancel and waits for the end. Returns the folder of the savepoint, if any."""
        self.ask(kind)
        assert self.join() is MasterExitCode.DONE
        assert self.records.failure is None, self.records.failure
        return self.records.final_savepoint() or ""


@contextmanager
def running(
    job: CompiledJob,
    storage: Path | str,
    records: MemoryRunStore | None = None,
    settings: CoordinatorSettings = FAST,
    restart: RestartStrategy | None = None,
    launcher: Launcher | None = None,
    retained: int = 1_000,
    store: SnapshotStore | None = None,
    **options: Any,
) -> Iterator[Run]:
    """Keeps `retained` checkpoints. Ends with the block, whatever happened in it. `options` goes to the master.

    `store`: `storage` as the master sees it.
    """
    records = records or MemoryRunStore()
    config = MasterConfig(
        job_id=job.name, token=records.token, job=job, storage=str(storage), coordinator=settings,
        restart=restart or FixedDelay(attempts=0), retention=RetentionPolicy(retained), **options,
    )  # fmt: skip
    store = store or open_store(str(storage))
    master = JobMaster(config, records, store, launcher or LocalLauncher(), SystemClock())
    exit_codes: list[MasterExitCode] = []
    run = Run(
        master, records, threading.Thread(target=lambda: exit_codes.append(master.run()), daemon=True), exit_codes
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slot, "HEARTBEAT_INTERVAL_S", HEARTBEAT_INTERVAL_S)
        patch.setattr(live_report, "LIVE_INTERVAL_MS", LIVE_INTERVAL_MS)
        run.thread.start()
        try:
            yield run
        finally:
            if run.thread.is_alive():
                run.ask("cancel")
                run.thread.join(PATIENCE_S)


def run_to_end(
    job: CompiledJob, storage: Path | str, records: MemoryRunStore | None = None, **options: Any
) -> MemoryRunStore:
    """A job that ends by itself. Arguments as of `running`."""
    with running(job, storage, records, **options) as run:
        assert run.join() is MasterExitCode.DONE
    assert run.records.failure is None, run.records.failure
    return run.records


def with_operator(job: CompiledJob, uid: str, make: Callable[[], Operator]) -> CompiledJob:
    """The same graph with other code for one step."""
    assert OperatorId(uid) in job.operators, f"no step {uid!r}"
    return replace(job, operators={**job.operators, OperatorId(uid): make})


# ---------------------------------------------------------------- what a manifest holds


def _restore(uid: str, snapshots: tuple[SubtaskSnapshot, ...], groups: range) -> SubtaskRestore:
    proofs = keyed_proofs(snapshots, groups)
    return SubtaskRestore(subtask=SubtaskId(OperatorId(uid), 0), snapshots=snapshots, proofs=proofs)


def restored_state(manifest: Manifest, uid: str, root: Path) -> SubtaskState:
    """All state of an operator, as one subtask."""
    state = SubtaskState(range(manifest.max_parallelism), manifest.max_parallelism, FileStore(str(root)))
    snapshots = tuple(manifest.operators[uid].subtasks.values())
    state.restore(_restore(uid, snapshots, range(manifest.max_parallelism)))
    return state


def positions_in(manifest: Manifest, root: Path, splits: int, uid: str = "numbers") -> list[int]:
    """Of `tests.jobs.numbers.Numbers`: the next row of each split."""
    table = restored_state(manifest, uid, root).keyed_table(
        "positions",
        pa.schema([("split", pa.int64())]),
        pa.schema([pa.field("next", pa.int64(), nullable=False)]),
    )
    slots = table.upsert([pa.array(range(splits), pa.int64())])
    return [int(position) for position in table.column("next")[slots]]


class _Last:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        raise AssertionError(f"rows came to the side output {output!r}")


def counts_in(manifest: Manifest, root: Path, keys: int, uid: str = "counts") -> dict[int, tuple[int, int]]:
    """Of `tests.jobs.numbers.counts`: what the operator itself would go on from, by key."""
    operator, out = RunningAggregate(["key"], {"n": Count(), "total": Sum("value")}), _Last()
    groups = manifest.max_parallelism
    operator.open(
        OperatorContext(
            job="job",
            uid=uid,
            index=0,
            parallelism=1,
            max_parallelism=groups,
            token=Token(1),
            state=restored_state(manifest, uid, root),
            now_ms=lambda: 0,
        )
    )
    none = pa.array([0] * keys, pa.int64())
    operator.process(0, pa.record_batch({"key": pa.array(range(keys), pa.int64()), "value": none}), out)
    return {row["key"]: (row["n"] - 1, row["total"]) for row in out.rows if row["n"] > 1}
