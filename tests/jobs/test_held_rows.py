"""Whole jobs in which an operator holds rows for a while, open requests and micro-batches: ended, stopped, crashed."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.key_groups import default_max_parallelism, key_group_owner
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.snapshot.manifest import FinishedState, Manifest
from runtime.core.snapshot.manifest_codec import manifest_folder
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count
from runtime.ports import Collector, Operator
from runtime.state.index.hashing import key_groups
from tests.jobs.article_methods import Located
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import FAST, running, with_operator
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.shared import Notes

SPLITS = 4
GROUPS = default_max_parallelism(3)
MAX_LATENCY_S = 8.0  #: with checkpoints every 200 ms, on a busy machine


@dataclass
class Service:
    """Answers while it is up. All slots live in this process."""

    up: bool = True
    open: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.requests.append(row)
        self.open += 1
        while not self.up:  # noqa: ASYNC110  # told from another thread
            await asyncio.sleep(0.002)
        self.open -= 1
        return [row]


def lookups(source: Any, service: Service, output: Path, bomb: Any = None) -> Dataflow:
    flow = Dataflow("lookups")
    stream = flow.source("numbers", source).async_map("ask", service, SCHEMA, capacity=50, timeout_ms=60_000)
    (stream if bomb is None else stream.map_batches("bomb", bomb)).sink("out", ParquetSink(str(output)))
    return flow


def batched(source: Any, output: Path, sizes: Notes, **limits: Any) -> Dataflow:
    def bulk(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.add(batch.num_rows)
        return batch

    flow = Dataflow("batched")
    numbers = flow.source("numbers", source).key_by("key")
    numbers.batches("bulk", bulk, **limits).transform("located", Located).sink("out", ParquetSink(str(output)))
    return flow


def rows_of(source: Numbers) -> list[tuple[int, int]]:
    return sorted(((v * 31 + split) % source.keys, v) for split in range(source.splits) for v in range(source.total))


def found(output: Path) -> list[tuple[int, int]]:
    return sorted((row["key"], row["value"]) for row in committed(output))


def keys_rise(rows: Sequence[dict[str, Any]]) -> bool:
    """Of one split: the values of a key only rise."""
    last: dict[int, int] = {}
    for row in rows:
        if row["value"] < last.get(row["key"], -1):
            return False
        last[row["key"]] = row["value"]
    return True


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_bounded_job_ends_with_every_answer(tmp_path: Path, parallelism: int) -> None:
    """S0-34."""
    source, service = Numbers(total=300, splits=SPLITS), Service()
    flow = lookups(source, service, tmp_path / "out")
    records = run_local(flow, parallelism=parallelism, storage=str(tmp_path / "state"), settings=FAST)
    assert records.state is RunState.FINISHED
    assert found(tmp_path / "out") == rows_of(source)


@pytest.mark.parametrize("bounded", [True, False])
def test_the_end_waits_for_50_open_requests(tmp_path: Path, bounded: bool) -> None:
    """S0-34: at the end of the input and at a drain; checkpoints with open requests go on before it."""
    service = Service(up=False)
    source = Numbers(total=50, splits=1) if bounded else Gated(total=50, splits=1)
    with running(lookups(source, service, tmp_path / "out").compile(1), tmp_path / "state") as run:
        run.wait_for(lambda: service.open == 50)
        if not bounded:
            run.checkpoints(2)
            run.ask("drain")
        assert committed(tmp_path / "out") == []
        service.up = True
        run.join()
    assert run.records.failure is None
    assert found(tmp_path / "out") == rows_of(Numbers(total=50, splits=1))


def lookups_beside(service: Service, output: Path, endless: Gated) -> Dataflow:
    """A bounded branch with requests, and an unbounded branch beside it."""
    flow = lookups(Numbers(total=10), service, output)
    flow.source("endless", endless).sink("beside", ParquetSink(str(output.parent / "beside")))
    return flow


def waits_at_its_end(manifest: Manifest) -> bool:
    """Whether the source had finished and the step with the requests had not."""
    operators = manifest.operators
    finished, running = FinishedState.FINISHED, FinishedState.RUNNING
    return (operators["numbers"].finished, operators["ask"].finished) == (finished, running)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_checkpoints_complete_while_the_end_of_a_branch_waits_for_requests(
    tmp_path: Path, before: int, after: int
) -> None:
    """S0-34: the barrier passes the end; a restore asks again, and each answer is given out once."""
    output, down, endless = tmp_path / "out", Service(up=False), Gated(total=5)
    with running(lookups_beside(down, output, endless).compile(before), tmp_path / "state") as run:
        run.wait_for(lambda: down.open == 40)
        run.wait_for(lambda: sum(map(waits_at_its_end, run.manifests)) >= 3)
        newest = run.manifests[-1]
        run.ask("cancel")
        run.join()
    assert committed(output) == []
    assert waits_at_its_end(newest)
    again = Service()
    records = MemoryRunStore(token=Token(2), restore_from=manifest_folder(newest))
    endless.total = 8
    with running(lookups_beside(again, output, endless).compile(after), tmp_path / "state", records) as run:
        run.wait_for(lambda: len(found(output)) == 40)
        run.end("drain")
    assert len(again.requests) == 40
    assert found(output) == rows_of(Numbers(total=10))
    assert found(tmp_path / "beside") == rows_of(Numbers(total=8))


def test_the_end_that_waits_comes_once_the_requests_are_answered(tmp_path: Path) -> None:
    """S0-34: without a restore; the branch then ends by itself beside the other."""
    output, service, endless = tmp_path / "out", Service(up=False), Gated(total=5)
    with running(lookups_beside(service, output, endless).compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: any(map(waits_at_its_end, run.manifests)))
        run.checkpoints(2)
        service.up = True
        run.wait_for(lambda: run.manifests[-1].operators["out"].finished is FinishedState.FINISHED)
        run.checkpoints(2)
        run.end("drain")
    assert len(service.requests) == 40
    assert found(output) == rows_of(Numbers(total=10))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_stop_takes_the_requests_at_the_end_of_a_branch_along(tmp_path: Path, parallelism: int) -> None:
    output, down, endless = tmp_path / "out", Service(up=False), Gated(total=5)
    with running(lookups_beside(down, output, endless).compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: any(map(waits_at_its_end, run.manifests)))
        savepoint = run.end("stop")
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    flow = lookups_beside(Service(), output, endless)
    with running(flow.compile(parallelism), tmp_path / "state", records) as run:
        run.wait_for(lambda: len(found(output)) == 40)
        run.end("drain")
    assert found(output) == rows_of(Numbers(total=10))


def test_checkpoints_complete_while_the_marker_of_a_loop_waits_for_requests(tmp_path: Path) -> None:
    """S4-41: the data has ended, and the loop asks whether it is empty."""
    service, flow = Service(up=False), Dataflow("loop")
    loop = flow.source("numbers", Numbers(total=10)).iterate("loop")
    answers = loop.async_map("ask", service, SCHEMA, timeout_ms=60_000)
    loop.close_with(answers.filter("again", pc.field("value") < 0))
    answers.sink("out", ParquetSink(str(tmp_path / "out")))
    with running(flow.compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: any(m.operators["numbers"].finished is FinishedState.FINISHED for m in run.manifests))
        run.wait_for(lambda: service.open == 40)
        run.checkpoints(3)
        service.up = True
        run.join()
    assert run.records.failure is None
    assert found(tmp_path / "out") == rows_of(Numbers(total=10))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_open_requests_are_in_the_savepoint_of_a_stop_and_asked_again(tmp_path: Path, parallelism: int) -> None:
    """S0-34: at another parallelism too; every answer is given out once."""
    output, service = tmp_path / "out", Service(up=False)
    with running(lookups(Gated(total=10), service, output).compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: service.open == 40)
        savepoint = run.end("stop")
    assert committed(output) == []
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    flow = lookups(Numbers(total=30), Service(), output)
    run_local(flow, parallelism=parallelism, storage=str(tmp_path / "state"), settings=FAST, records=records)
    assert found(output) == rows_of(Numbers(total=30))


def test_open_requests_survive_a_crash(tmp_path: Path) -> None:
    """S0-34."""
    output, service, bomb = tmp_path / "out", Service(), Bomb()
    source = Gated(total=20)
    job = lookups(source, service, output, bomb).compile(2)
    with running(job, tmp_path / "state", restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: len(found(output)) == 80)
        service.up = False
        source.total = 30
        run.wait_for(lambda: service.open > 0)
        run.checkpoints(2)
        bomb.arm()
        service.up = True
        run.wait_for(lambda: len(found(output)) == 120)
        run.end("stop")
        assert len(run.records.attempts) >= 1
    assert found(output) == rows_of(source.numbers)


# ---------------------------------------------------------------- micro-batches


def test_batches_leave_full_and_the_last_ones_at_the_end(tmp_path: Path, jobs: Jobs) -> None:
    """S3-14, S3-15, S3-16, S3-43: no batch is larger, although their time is far away."""
    source, sizes = Numbers(total=500, splits=SPLITS), Notes()
    flow = batched(source, tmp_path / "out", sizes, max_rows=64, max_wait_ms=60_000)
    jobs.run_to_end(flow.compile(2), tmp_path / "state")
    assert found(tmp_path / "out") == rows_of(source)
    assert [size for size in sizes.values if size != 64] == [size for size in sizes.values if size < 64]
    assert sum(size < 64 for size in sizes.values) <= 2


@pytest.mark.parametrize("bounded", [True, False])
def test_event_time_comes_to_its_end_behind_the_last_batches(tmp_path: Path, bounded: bool, jobs: Jobs) -> None:
    """S3-16: a window behind them fires with the rows that left at the end of the input, or at a drain."""
    output, source = tmp_path / "out", Numbers(total=30, splits=2) if bounded else Gated(total=30, splits=2)
    flow = Dataflow("windows")
    batches = flow.source("numbers", source).key_by("key")
    batches = batches.batches("bulk", lambda batch: batch, max_rows=1_000, max_wait_ms=60_000).key_by("key")
    windows = batches.window("windows", timedelta(milliseconds=10), "value", {"n": Count()})
    windows.sink("out", ParquetSink(str(output)))
    with jobs.running(flow.compile(2), tmp_path / "state") as run:
        if not bounded:
            run.wait_for(lambda: run.operator("bulk").get("records_in", 0) == 60)
            run.end("drain")
        run.join()
    assert sum(row["n"] for row in committed(output)) == 60


def test_a_trickle_leaves_although_nothing_more_comes(tmp_path: Path, jobs: Jobs) -> None:
    """S3-04, S3-14, S3-37: after the time, by the slot's own clock; rows are visible within seconds."""
    output, sizes = tmp_path / "out", Notes()
    source = Gated(total=0)
    flow = batched(source, output, sizes, max_rows=1_000, max_wait_ms=20)
    with jobs.running(flow.compile(2), tmp_path / "state") as run:
        run.checkpoints(1)
        source.total, began = 3, time.monotonic()
        run.wait_for(lambda: len(found(output)) == 12)
        assert time.monotonic() - began < MAX_LATENCY_S
        run.end("stop")


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 1)])
def test_rows_that_wait_move_with_their_keys_over_a_rescale(tmp_path: Path, old: int, new: int, jobs: Jobs) -> None:
    """S3-17, S3-25, S3-39: none is lost, the order of a key holds, and its rows leave where its new rows come."""
    output, sizes = tmp_path / "out", Notes()
    halted = batched(Gated(total=30, splits=1), output, sizes, max_rows=1_000, max_wait_ms=60_000)
    with jobs.running(halted.compile(old), tmp_path / "state") as run:
        run.wait_for(lambda: run.operator("bulk").get("records_in", 0) == 30)
        savepoint = run.end("stop")
    assert sizes.values == []
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    flow = batched(Numbers(total=60, splits=1), output, sizes, max_rows=8, max_wait_ms=60_000)
    jobs.run_to_end(flow.compile(new), tmp_path / "state", records)
    rows = committed(output)
    assert found(output) == rows_of(Numbers(total=60, splits=1))
    assert keys_rise(rows)
    keys = pa.record_batch({"key": pa.array([row["key"] for row in rows], pa.int64())})
    homes = [key_group_owner(group, GROUPS, new) for group in key_groups(keys, ["key"], GROUPS).tolist()]
    assert [row["subtask"] for row in rows] == homes


def test_rows_that_wait_survive_a_crash(tmp_path: Path, jobs: Jobs) -> None:
    """S3-17."""
    output, sizes, bomb = tmp_path / "out", Notes(), Bomb()
    source = Gated(total=5)
    flow = Dataflow("batched")
    numbers = flow.source("numbers", source).map_batches("bomb", bomb).key_by("key")
    numbers.batches("bulk", lambda batch: batch, max_rows=40, max_wait_ms=60_000).sink("out", ParquetSink(str(output)))
    with jobs.running(flow.compile(1), tmp_path / "state", restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: run.operator("bulk").get("records_in", 0) == 20)
        run.checkpoints(2)
        bomb.arm()
        source.total = 10
        run.wait_for(lambda: len(found(output)) == 40)
        run.end("stop")
    assert found(output) == rows_of(source.numbers)
    assert sizes.values == []


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_stop_takes_rows_that_are_flushed_towards_a_step_without_capacity(tmp_path: Path, parallelism: int) -> None:
    """Batches flush at the barrier of the savepoint, behind the end of the data; each answer is given out once."""
    output, service = tmp_path / "out", Service(up=False)

    def job(source: Any, service: Service) -> Dataflow:
        flow = Dataflow("flushed")
        numbers = flow.source("numbers", source).key_by("key")
        bulk = numbers.batches("bulk", lambda batch: batch, max_rows=25, flush_on_barrier=True)
        bulk.async_map("ask", service, SCHEMA, capacity=1, timeout_ms=60_000).sink("out", ParquetSink(str(output)))
        return flow

    settings = replace(FAST, interval_ms=None, timeout_ms=20_000)
    with running(job(Gated(total=10), service).compile(1), tmp_path / "state", settings=settings) as run:
        run.wait_for(lambda: service.open == 1 and run.operator("bulk").get("records_in", 0) == 40)
        savepoint = run.end("stop")
    assert committed(output) == []
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    flow = job(Numbers(total=30), Service())
    run_local(flow, parallelism=parallelism, storage=str(tmp_path / "state"), settings=FAST, records=records)
    assert found(output) == rows_of(Numbers(total=30))


# ---------------------------------------------------------------- nothing kept


class Ahead(Operator):
    """Holds rows back until just before a barrier, and keeps no state."""

    def __init__(self) -> None:
        self._held: list[pa.RecordBatch] = []

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._held.append(batch)

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        batches, self._held = self._held, []
        for batch in batches:
            out.emit(batch)

    def snapshot(self, checkpoint: int) -> None:
        assert not self._held, "what lies here now would be lost"

    def finish(self, out: Collector) -> None:
        self.prepare_snapshot_pre_barrier(0, out)


def test_who_flushes_ahead_of_the_barrier_needs_no_state(tmp_path: Path, jobs: Jobs) -> None:
    """S3-40: nothing is lost in a crash, and the snapshots are empty."""
    output, bomb, source = tmp_path / "out", Bomb(), Gated(total=20)
    flow = Dataflow("ahead")
    numbers = flow.source("numbers", source).map_batches("bomb", bomb)
    numbers.map_batches("ahead", lambda batch: batch).sink("out", ParquetSink(str(output)))
    job = with_operator(flow.compile(2), "ahead", Ahead)
    with jobs.running(job, tmp_path / "state", restart=FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: len(found(output)) == 80)
        bomb.arm()
        source.total = 40
        run.wait_for(lambda: len(found(output)) == 160)
        run.end("drain")
    assert found(output) == rows_of(source.numbers)
    snapshots = [s for m in run.manifests for s in m.operators["ahead"].subtasks.values()]
    assert not any(snapshot.segments() or snapshot.lists for snapshot in snapshots)
