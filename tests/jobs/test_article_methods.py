"""Seed 003: three ways to micro-batches, and where each breaks; `KeyedStream.batches` in the same place holds."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.key_groups import default_max_parallelism, key_group_owner
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.state.index.hashing import key_groups
from tests.jobs.article_methods import (
    CANDIDATES,
    EmptiedInSnapshot,
    ListBatches,
    Located,
    VirtualBatches,
    VirtualKeySelector,
    Watch,
    deal,
    virtual_keys,
)
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import Run, positions_in
from tests.jobs.mortal import Deaths, Mortal
from tests.jobs.numbers import SCHEMA, committed
from tests.shared import Notes

MAX_ROWS = 25
KEYS = 12
NEVER_MS = 600_000
GROUPS = default_max_parallelism(3)
AGAIN = weir.FixedDelay(attempts=9, delay_ms=20)
ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)


def source(total: int, splits: int = 1) -> Gated:
    """With one split, the values of a key rise, whichever subtask they are in."""
    return Gated(total=total, splits=splits, keys=KEYS)


def by_key(rows: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    values = defaultdict[int, list[int]](list)
    for row in rows:
        values[row["key"]].append(row["value"])
    return dict(values)


def expected(total: int) -> dict[int, list[int]]:
    return by_key([{"key": value * 31 % KEYS, "value": value} for value in range(total)])


def has_read(run: Run, storage: Path, total: int) -> bool:
    """Whether the newest checkpoint is behind `total` rows of a single split, so that all steps have had them."""
    return bool(run.manifests) and positions_in(run.manifests[-1], storage, 1) == [total]


def overtaken(rows: Sequence[dict[str, Any]], total: int) -> set[int]:
    """Keys of which a value is out although an earlier value is not, or came later."""
    answer = expected(total)
    return {key for key, values in by_key(rows).items() if values != answer[key][: len(values)]}


# ---------------------------------------------------------------- method 1: virtual keys


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 12, 33, 64])
def test_each_subtask_has_a_virtual_key_that_is_sent_to_it(parallelism: int) -> None:
    """S3-08, S3-09, S3-10: twelve candidates a subtask are enough; the same rows have the same virtual key."""
    groups = default_max_parallelism(parallelism)
    keys = virtual_keys(parallelism, groups)
    homes = key_groups(pa.record_batch({"virtual": pa.array(keys, pa.int64())}), ["virtual"], groups)
    assert [key_group_owner(int(group), groups, parallelism) for group in homes] == list(range(parallelism))
    assert max(keys) < parallelism * CANDIDATES
    rows = pa.record_batch({"key": pa.array(range(1_000)), "value": pa.array(range(1_000))})
    columns = [VirtualKeySelector(parallelism, groups)(rows).column("virtual") for _ in range(2)]
    assert columns[0].equals(columns[1])
    assert set(columns[0].to_pylist()) <= set(keys)


def test_a_subtask_without_a_virtual_key_is_an_error_before_the_start() -> None:
    """S3-10."""
    with pytest.raises(ValueError, match=r"no virtual key for subtask \d+ among 64 candidates"):
        virtual_keys(64, default_max_parallelism(64), candidates=1)


@pytest.mark.parametrize(("default", "groups"), [(3, 128), (100, 256)])
def test_the_engine_sends_a_virtual_key_to_its_subtask(default: int, groups: int, jobs: Jobs, tmp_path: Path) -> None:
    """S3-08, S3-09, S3-10, S3-11: by the key groups that derive from the parallelism of the job, here 1.5 times."""
    numbers, output, parallelism = source(400), tmp_path / "out", 3
    flow = weir.Dataflow("located")
    rows = flow.source("numbers", numbers, parallelism=1)
    virtual_rows = rows.map_batches("selector", VirtualKeySelector(parallelism, groups), parallelism=1)
    located = virtual_rows.key_by("virtual").transform("located", Located, parallelism=parallelism)
    located.sink("out", weir.ParquetSink(str(output)), parallelism=parallelism)
    with jobs.running(flow.compile(default), tmp_path / "state") as run:
        run.wait_for(lambda: len(committed(output)) == 400)
        run.end("stop")
    assert {manifest.max_parallelism for manifest in run.manifests} == {groups}
    pairs = set(zip(virtual_keys(parallelism, groups), range(parallelism), strict=True))
    assert {(row["virtual"], row["subtask"]) for row in committed(output)} == pairs


def virtual(numbers: Gated, output: Path, watch: Watch, parallelism: int) -> CompiledJob:
    flow = weir.Dataflow("virtual")
    rows = flow.source("numbers", numbers).map_batches("selector", VirtualKeySelector(parallelism, GROUPS))
    batches = rows.key_by("virtual").process("bulk", lambda: VirtualBatches(watch, MAX_ROWS, NEVER_MS), SCHEMA)
    batches.sink("out", weir.ParquetSink(str(output)))
    return flow.compile(parallelism)


def ours(numbers: Gated, output: Path, watch: Watch, parallelism: int) -> CompiledJob:
    def bulk(batch: pa.RecordBatch) -> pa.RecordBatch:
        watch.on_flush(batch.column("value").to_pylist())
        return batch

    flow = weir.Dataflow("ours")
    rows = flow.source("numbers", numbers).key_by("key")
    rows.batches("bulk", bulk, max_rows=MAX_ROWS).sink("out", weir.ParquetSink(str(output)))
    return flow.compile(parallelism)


@pytest.mark.parametrize(("build", "breaks"), [(virtual, True), (ours, False)])
def test_virtual_keys_break_the_order_of_a_key_at_a_rescale(
    build: Any, breaks: bool, tmp_path: Path, jobs: Jobs
) -> None:
    """S3-18: 20 rows wait at the stop; behind a rescale, rows of their keys form full batches elsewhere.

    The old virtual keys get no more rows, so their rows still wait when later rows of the same keys are out.
    """
    assert not set(virtual_keys(2, GROUPS)) & set(virtual_keys(3, GROUPS))
    numbers, output, storage = source(20), tmp_path / "out", tmp_path / "state"
    with jobs.running(build(numbers, output, Watch(), 2), storage) as run:
        run.wait_for(lambda: has_read(run, storage, 20))
        savepoint = run.end("stop")
    assert committed(output) == []
    numbers.total = 400
    records = MemoryRunStore(token=Token(10), restore_from=savepoint)
    with jobs.running(build(numbers, output, Watch(), 3), storage, records) as run:
        run.wait_for(lambda: has_read(run, storage, 400))
        run.end("stop")
    assert len(committed(output)) >= 250, "full batches have left"
    assert bool(overtaken(committed(output), 400)) is breaks


# ---------------------------------------------------------------- method 2: operator state


def dealt(numbers: Gated, output: Path, watch: Watch, parallelism: int, wait_ms: int) -> CompiledJob:
    flow = weir.Dataflow("dealt")
    rows = flow.source("numbers", numbers).partition_custom(deal, "key")
    batches = rows.process("bulk", lambda: ListBatches(watch, MAX_ROWS, wait_ms), SCHEMA)
    batches.sink("out", weir.ParquetSink(str(output)))
    return flow.compile(parallelism)


def timed(numbers: Gated, output: Path, watch: Watch, parallelism: int, wait_ms: int) -> CompiledJob:
    flow = weir.Dataflow("timed")
    rows = flow.source("numbers", numbers).key_by("key")
    batches = rows.batches("bulk", lambda batch: batch, max_rows=MAX_ROWS, max_wait_ms=wait_ms)
    batches.sink("out", weir.ParquetSink(str(output)))
    return flow.compile(parallelism)


@pytest.mark.parametrize(("build", "breaks"), [(dealt, True), (timed, False)])
def test_a_restored_buffer_without_timers_is_stuck_while_no_row_comes(
    build: Any, breaks: bool, tmp_path: Path, jobs: Jobs
) -> None:
    """S3-35, S3-37, S3-38: its time is up and checkpoints complete, but rows leave only where the clock drives them."""
    numbers, output, storage = source(20), tmp_path / "out", tmp_path / "state"
    with jobs.running(build(numbers, output, Watch(), 2, NEVER_MS), storage) as run:
        run.wait_for(lambda: has_read(run, storage, 20))
        savepoint = run.end("stop")
    assert committed(output) == []
    records = MemoryRunStore(token=Token(10), restore_from=savepoint)
    with jobs.running(build(numbers, output, Watch(), 1, 10), storage, records) as run:
        if breaks:
            run.checkpoints(4)
            assert committed(output) == []
        else:
            run.wait_for(lambda: len(committed(output)) == 20)
        run.end("stop")


# ---------------------------------------------------------------- method 3: emptying in the snapshot


class Fatal(weir.spi.Operator):
    """Forwards rows; its slot ends when a checkpoint has completed, with the rows that came behind the barrier."""

    def __init__(self, mortal: Mortal) -> None:
        self._mortal = mortal

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        out.emit(batch)

    def checkpoint_completed(self, permit: weir.spi.CommitPermit) -> None:
        self._mortal.at("completed")


def emptied(numbers: Gated, output: Path, deaths: Deaths) -> CompiledJob:
    flow = weir.Dataflow("emptied")
    rows = flow.source("numbers", numbers).transform("bulk", lambda: EmptiedInSnapshot(Watch()), SCHEMA)
    rows.transform("fatal", lambda: Fatal(Mortal(deaths, "fatal"))).sink("out", weir.ParquetSink(str(output)))
    return flow.compile(1)


def flushed(numbers: Gated, output: Path, deaths: Deaths) -> CompiledJob:
    flow = weir.Dataflow("flushed")
    rows = flow.source("numbers", numbers).key_by("key")
    batches = rows.batches("bulk", lambda batch: batch, max_rows=10_000, flush_on_barrier=True)
    batches.transform("fatal", lambda: Fatal(Mortal(deaths, "fatal"))).sink("out", weir.ParquetSink(str(output)))
    return flow.compile(1)


@pytest.mark.parametrize(("build", "breaks"), [(emptied, True), (flushed, False)])
def test_rows_that_leave_in_the_snapshot_are_lost_with_their_receiver(
    build: Any, breaks: bool, tmp_path: Path, jobs: Jobs
) -> None:
    """S3-40, S3-59, S3-62: in a healthy run all rows arrive; an end right behind the barrier loses a whole buffer."""
    numbers, output, deaths = source(30), tmp_path / "out", Deaths("fatal: completed")
    with jobs.running(build(numbers, output, deaths), tmp_path / "state", settings=ASKED, restart=AGAIN) as run:
        run.wait_for(lambda: run.operator("bulk").get("records_in") == 30)
        run.ask("checkpoint")
        run.wait_for(lambda: run.records.token == 2)
        numbers.total = 75
        run.wait_for(lambda: run.operator("bulk").get("records_in") == 45)
        run.end("drain")
    assert run.manifests[0].token == 1, "the checkpoint has completed"
    values = sorted(row["value"] for row in committed(output))
    assert values == list(range(30 if breaks else 0, 75))


# ---------------------------------------------------------------- ours, with both triggers


@pytest.mark.parametrize("flush_on_barrier", [False, True])
def test_batches_keep_order_and_rows_from_2_to_3_to_1(flush_on_barrier: bool, tmp_path: Path, jobs: Jobs) -> None:
    """S3-17, S3-19, S3-41, S3-42: a slot ends between buffer and flush at each parallelism."""
    numbers, output, storage, sizes = source(200), tmp_path / "out", tmp_path / "state", Notes()
    savepoint: str | None = None
    for number, parallelism in enumerate((2, 3, 1)):
        deaths = Deaths()
        job = dying(numbers, output, Mortal(deaths, "bulk"), sizes, flush_on_barrier).compile(parallelism)
        records = MemoryRunStore(token=Token(10 * number + 1), restore_from=savepoint)
        with jobs.running(job, storage, records, restart=AGAIN) as run:
            run.checkpoints(1)
            before = records.token
            deaths.add("bulk: flush")
            numbers.total += 150
            run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            run.wait_for(lambda: has_read(run, storage, numbers.total))
            savepoint = run.end("drain" if number == 2 else "stop")
        assert deaths.waiting == []
        assert not overtaken(committed(output), numbers.total)
    assert by_key(committed(output)) == expected(numbers.total)
    assert all(0 < size <= MAX_ROWS for size in sizes.values)


def dying(numbers: Gated, output: Path, mortal: Mortal, sizes: Notes, flush_on_barrier: bool) -> weir.Dataflow:
    def bulk(batch: pa.RecordBatch) -> pa.RecordBatch:
        mortal.at("flush")
        sizes.add(batch.num_rows)
        return batch

    flow = weir.Dataflow("dying")
    rows = flow.source("numbers", numbers).key_by("key")
    batches = rows.batches("bulk", bulk, max_rows=MAX_ROWS, max_wait_ms=40, flush_on_barrier=flush_on_barrier)
    batches.sink("out", weir.ParquetSink(str(output)))
    return flow
