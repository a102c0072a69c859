"""Micro-batches: when they leave, what they hold, and what waits over a snapshot."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.messages import MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.aggregates import Count
from runtime.operators.functions.micro_batches import (
    BY_BARRIER_COUNTER,
    BY_END_COUNTER,
    BY_SIZE_COUNTER,
    BY_TIME_COUNTER,
    ROWS_COUNTER,
    Batches,
    BatchLimits,
)
from runtime.operators.partition import partition_by_key_group
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.state.own_memory import memory_kept_alive
from tests.operators.combined import Combined
from tests.operators.harness import Harness
from tests.received import wide

GROUPS = 16


class Bulk:
    """Notes the size of each batch, and passes it on."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.sizes.append(batch.num_rows)
        return batch


def rows(*values: int, keys: int = 7) -> pa.RecordBatch:
    """Each key's values rise."""
    return pa.record_batch({"k": pa.array([v % keys for v in values], pa.int64()), "v": pa.array(values, pa.int64())})


def operator(bulk: Bulk, max_rows: int = 10, max_wait_ms: int = 50) -> Batches:
    return Batches(["k"], bulk, BatchLimits(max_rows, max_wait_ms))


def values(rows: list[dict[str, Any]]) -> list[int]:
    return [row["v"] for row in rows]


@pytest.mark.parametrize(("count", "leaves"), [(9, []), (10, [10]), (11, [10]), (25, [10, 10]), (0, [])])
def test_a_batch_leaves_with_its_last_row(count: int, leaves: list[int]) -> None:
    """S3-14, S3-15, S3-43: exactly N rows leave at the Nth; the buffer is never above N."""
    bulk = Bulk()
    harness = Harness(operator(bulk))
    harness.process(rows(*range(count)))
    assert bulk.sizes == leaves
    assert harness.context.counters.get(BY_SIZE_COUNTER, 0) == len(leaves)


def test_a_batch_leaves_when_its_first_row_has_waited_long_enough() -> None:
    """S3-14, S3-42: and an empty buffer sends nothing."""
    bulk = Bulk()
    harness = Harness(operator(bulk))
    assert harness.operator.next_processing_timer() is None
    harness.clock.advance(5)
    harness.process(rows(1))
    harness.clock.advance(30)
    harness.process(rows(2))
    harness.clock.advance(19)
    assert harness.tick() == []
    harness.clock.advance(1)
    assert values(harness.tick()) == [1, 2]
    harness.clock.advance(1_000)
    assert (harness.tick(), harness.operator.next_processing_timer()) == ([], None)
    assert harness.context.counters == {BY_TIME_COUNTER: 1, ROWS_COUNTER: 2}


def test_a_batch_without_an_age_limit_waits_for_its_last_row_or_the_end() -> None:
    bulk = Bulk()
    harness = Harness(Batches(["k"], bulk, BatchLimits(max_rows=3, max_wait_ms=None)))
    harness.process(rows(1, 2, 3, 4))
    harness.clock.advance(1_000_000)
    assert (harness.operator.next_processing_timer(), harness.tick(), bulk.sizes) == (None, [], [3])
    harness.finish()
    assert bulk.sizes == [3, 1]


@given(sizes=st.lists(st.integers(0, 40), max_size=12), max_rows=st.integers(1, 20))
def test_every_row_leaves_once_and_in_order(sizes: list[int], max_rows: int) -> None:
    """S3-16, S3-60: what came in is out or waits."""
    bulk = Bulk()
    harness = Harness(operator(bulk, max_rows))
    count = 0
    for size in sizes:
        harness.process(rows(*range(count, count + size)))
        count += size
        assert sum(bulk.sizes) == count - count % max_rows
    harness.finish()
    assert values(harness.out.rows()) == list(range(count))
    assert all(0 < size <= max_rows for size in bulk.sizes)


@given(gaps_ms=st.lists(st.integers(0, 80), min_size=1, max_size=25), max_rows=st.integers(2, 8))
def test_no_row_waits_longer_than_it_may(gaps_ms: list[int], max_rows: int) -> None:
    """S3-04, S3-14: however rows trickle in, each is out when its time is up."""
    harness = Harness(operator(Bulk(), max_rows, max_wait_ms=50))
    arrivals: dict[int, int] = {}
    for value, gap in enumerate([*gaps_ms, 50]):
        for _ in range(gap):
            harness.clock.advance(1)
            harness.tick()
            out = len(harness.out.rows())
            assert all(harness.clock.now_ms() - arrivals[late] < 50 for late in range(out, value))
        arrivals[value] = harness.clock.now_ms()
        harness.process(rows(value))
    assert values(harness.out.rows())[: len(gaps_ms)] == list(range(len(gaps_ms)))


def test_batches_of_many_keys_are_large_where_those_of_one_key_are_not() -> None:
    """S3-06: of 10,007 keys hardly any comes twice in a second, so a window per key gathers single rows."""
    keys, counts, bulk = 10_007, {"n": Count()}, Bulk()
    window = Harness(Combined(WindowPreAggregator(["k"], "at", 1_000, counts), TumblingWindow(["k"], 1_000, counts)))
    batches = Harness(operator(bulk, max_rows=1_000, max_wait_ms=1_000))
    for second in range(5):
        numbers = [(second * 5_000 + number) * 7_919 % keys for number in range(5_000)]
        batch = pa.record_batch(
            {"k": pa.array(numbers), "v": pa.array(numbers), "at": pa.array([second * 1_000] * 5_000)}
        )
        batches.process(batch)
        window.process(batch)
    window.watermark(10_000)
    gathered = [row["n"] for row in window.out.rows()]
    assert sum(gathered) == sum(bulk.sizes) == 25_000
    assert set(gathered) == {1}
    assert set(bulk.sizes) == {1_000}


def stored(parts: list[list[int]], store: MemorySnapshotStore) -> list[SubtaskSnapshot]:
    """Subtasks that hold rows back, each those of its key groups."""
    snapshots = []
    for index, numbers in enumerate(parts):
        dealt = partition_by_key_group(rows(*numbers), ["k"], GROUPS, len(parts))
        harness = Harness(operator(Bulk(), 1_000), store=store, index=index, parallelism=len(parts))
        part = dealt[index]
        if part is not None:
            harness.process(part)
        snapshots.append(harness.snapshot("chk-1"))
    return snapshots


@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 3), (3, 1), (1, 2)])
def test_rows_that_wait_move_with_their_keys_and_leave_before_new_ones(old: int, new: int) -> None:
    """S3-17, S3-25, S3-39: no key's order breaks."""
    store = MemorySnapshotStore()
    snapshots = stored([list(range(100))] * old, store)
    parts = partition_by_key_group(rows(*range(100, 200)), ["k"], GROUPS, new)
    output = []
    for index in range(new):
        harness = Harness(operator(Bulk()), store=store, snapshots=snapshots, index=index, parallelism=new)
        part = parts[index]
        if part is not None:
            harness.process(part)
        harness.finish()
        output += harness.out.rows()
    assert sorted(values(output)) == list(range(200))
    for key in range(7):
        numbers = [row["v"] for row in output if row["k"] == key]
        assert numbers == sorted(numbers)


def test_a_restored_buffer_leaves_in_several_batches() -> None:
    """S3-41: 2.5 batches, from three subtasks into one. S3-37: the half leaves although nothing new comes."""
    store, bulk = MemorySnapshotStore(), Bulk()
    snapshots = stored([list(range(25))] * 3, store)
    harness = Harness(operator(bulk), store=store, snapshots=snapshots)
    assert bulk.sizes == [10, 10]
    harness.clock.advance(50)
    harness.tick()
    assert bulk.sizes == [10, 10, 5]
    assert sorted(values(harness.out.rows())) == list(range(25))


def test_a_snapshot_holds_what_waits_now() -> None:
    """S3-32."""
    store = MemorySnapshotStore()
    harness = Harness(operator(Bulk()), store=store)
    harness.process(rows(*range(8)))
    harness.snapshot("chk-1")
    harness.process(rows(8, 9, 10))
    snapshot = harness.snapshot("chk-2")
    successor = Harness(operator(Bulk()), store=store, snapshots=[snapshot])
    assert values(successor.finish()) == [10]


def flushing(bulk: Bulk, max_wait_ms: int | None = 50) -> Batches:
    return Batches(["k"], bulk, BatchLimits(10, max_wait_ms, flush_on_barrier=True))


STEPS = st.lists(st.integers(0, 35) | st.sampled_from(["barrier", "wait"]), max_size=20)


@given(STEPS)
def test_a_buffer_that_is_flushed_on_the_barrier_is_in_no_snapshot(steps: list[Any]) -> None:
    """S3-40, S3-41, S3-42, S3-16: each batch has its cause; none is empty or above the limit; no row is lost."""
    bulk = Bulk()
    harness, count = Harness(flushing(bulk)), 0
    for number, step in enumerate(steps):
        if step == "barrier":
            harness.operator.prepare_snapshot_pre_barrier(number, harness.out)
            assert values(harness.out.rows()) == list(range(count))
            assert harness.operator.watermark_hold() is None
            snapshot = harness.snapshot(f"chk-{number}")
            successor = Harness(flushing(Bulk()), store=harness.store, snapshots=[snapshot])
            assert successor.finish() == []
        elif step == "wait":
            harness.clock.advance(50)
            harness.tick()
        else:
            harness.process(rows(*range(count, count + step)))
            count += step
    harness.finish()
    harness.operator.prepare_snapshot_pre_barrier(len(steps), harness.out)
    assert values(harness.out.rows()) == list(range(count))
    assert all(0 < size <= 10 for size in bulk.sizes)
    counted = harness.context.counters
    assert counted.get(ROWS_COUNTER, 0) == count
    causes = (BY_SIZE_COUNTER, BY_TIME_COUNTER, BY_BARRIER_COUNTER, BY_END_COUNTER)
    assert sum(counted.get(cause, 0) for cause in causes) == len(bulk.sizes)
    assert counted.get(BY_SIZE_COUNTER, 0) == bulk.sizes.count(10)


def test_rows_stored_without_a_flush_leave_in_several_batches_when_it_is_switched_on() -> None:
    """S3-41: a savepoint of three subtasks with 25 rows, restored by one that flushes on the barrier."""
    store, bulk = MemorySnapshotStore(), Bulk()
    harness = Harness(flushing(bulk, None), store=store, snapshots=stored([list(range(25))] * 3, store))
    harness.operator.prepare_snapshot_pre_barrier(1, harness.out)
    assert bulk.sizes == [10, 10, 5]


def test_event_time_does_not_overtake_rows() -> None:
    harness = Harness(operator(Bulk()))
    assert harness.operator.watermark_hold() is None
    harness.process(rows(1))
    harness.watermark(100)
    assert harness.operator.watermark_hold() == MIN_WATERMARK
    harness.process(rows(*range(10)))
    assert harness.operator.watermark_hold() == 100
    harness.finish()
    assert harness.operator.watermark_hold() is None


@pytest.mark.parametrize(("max_rows", "max_wait_ms", "field"), [(0, 1, "max_rows"), (1, -1, "max_wait_ms")])
def test_limits_that_make_no_sense_are_refused(max_rows: int, max_wait_ms: int, field: str) -> None:
    with pytest.raises(JobRejected, match=field):
        BatchLimits(max_rows, max_wait_ms)


def test_in_a_loop_that_comes_to_its_end_a_batch_does_not_wait_to_be_full() -> None:
    """S4-41."""
    harness = Harness(operator(Bulk()))
    harness.process(rows(1, 2))
    harness.operator.settle(harness.out)
    assert harness.operator.watermark_hold() is None


def test_the_rest_of_a_batch_that_waits_does_not_keep_the_whole_batch_alive() -> None:
    batches = operator(Bulk(), max_rows=6_000)
    harness = Harness(batches)
    harness.process(wide(rows=20_000))
    (waiting,) = batches._buffer
    assert waiting.num_rows == 2_000
    assert memory_kept_alive(waiting) < 1.1 * waiting.nbytes
