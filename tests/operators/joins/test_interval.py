"""Interval joins against a loop over records: disorder, lateness, restores at another parallelism, columns."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.connectors.sinks.print import PrintSink
from runtime.core.job.ids import OperatorId
from runtime.core.job.messages import MAX_WATERMARK
from runtime.dataflow.builder import Dataflow
from runtime.errors import JobRejected
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.interval import Interval, IntervalJoin
from runtime.operators.joins.two_streams import JoinSide
from runtime.state.index.interned import InternedCodec
from tests.example_counts import examples
from tests.jobs.numbers import Numbers
from tests.operators.harness import Harness
from tests.operators.joins.subtasks import (
    LEFT,
    RIGHT,
    SCHEMAS,
    SIDES,
    STEPS,
    Event,
    Oracle,
    batch,
    run,
    unequal_watermarks,
)

COLUMNS = JoinColumns((("k", "key"),), added=("when",))
TEN = Interval(0, 10)


def harness(interval: Interval = TEN, columns: JoinColumns = COLUMNS) -> Harness:
    return Harness(IntervalJoin((JoinSide(("k",), "t"), JoinSide(("key",), "at")), interval, columns, 10))


def restored(before: Harness, interval: Interval = TEN) -> Harness:
    join = IntervalJoin((JoinSide(("k",), "t"), JoinSide(("key",), "at")), interval, COLUMNS, 10)
    return Harness(join, store=before.store, snapshots=[before.snapshot("chk-1")])


def rows_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


class IntervalOracle(Oracle):
    def __init__(self, interval: Interval) -> None:
        super().__init__()
        self.interval = interval

    def is_late(self, time: int, watermark: int) -> bool:
        return time < watermark

    def meet(self, record: Event, other: Event) -> None:
        if self.interval.lower_ms <= other[1] - record[1] <= self.interval.upper_ms:
            self.pairs[record, other, max(record[1], other[1])] += 1


def check(interval: Interval, steps: list[Any]) -> None:
    oracle = IntervalOracle(interval)
    subtasks = run(lambda: IntervalJoin(SIDES, interval, COLUMNS, 3), oracle, steps)
    assert subtasks.pairs("when") == oracle.pairs
    assert subtasks.late == oracle.late
    assert subtasks.counted == oracle.late.total()


INTERVALS = st.builds(lambda lower, length: Interval(lower, lower + length), st.integers(-6, 6), st.integers(0, 8))


@settings(deadline=None, max_examples=examples(60))
@given(INTERVALS, STEPS)
def test_pairs_and_late_rows_are_those_of_a_loop_over_records(interval: Interval, steps: list[Any]) -> None:
    """Batches, watermarks, snapshots and rescales in any order. Subtasks differ in their watermarks."""
    check(interval, steps)


@pytest.mark.parametrize("index", range(3))
def test_lateness_is_that_of_the_former_owner_of_a_key(index: int) -> None:
    check(Interval(-3, 3), unequal_watermarks(index))


@pytest.mark.parametrize("snapshots", [0, 40])
def test_state_is_freed_by_the_watermark(snapshots: int) -> None:
    """Neither kept rows, nor keys, nor stored parts remain of rows that can match no more."""
    subtask = harness()
    for number in range(60):
        time = number * 10
        subtask.process(batch(0, [(f"key {number}", time, number), ("all", time, number)]), 0)
        subtask.process(batch(1, [(f"key {number}", time + 5, number)]), 1)
        subtask.watermark(time)
        if number >= 60 - snapshots:
            subtask.operator.snapshot(number)
    tables = [subtask.state.tables[name] for name in ("first", "second")]
    assert all(0 < len(table) < 30 for table in tables) == bool(snapshots)
    assert len(subtask.out.rows()) == 60
    subtask.watermark(MAX_WATERMARK)
    subtask.operator.snapshot(99)
    assert [len(table) for table in tables] == [0, 0]
    join = subtask.operator
    assert isinstance(join, IntervalJoin)
    assert [len(side.kept) for side in join._sides] == [0, 0]
    assert len(join._index) == 0


def test_parts_stay_few_with_many_snapshots() -> None:
    """Each snapshot adds a part; parts of a bucket are merged in tiers of eight."""
    subtask = harness(Interval(0, 1_000_000))
    for number in range(200):
        subtask.process(batch(0, [("a", 0, number)]), 0)
        subtask.operator.snapshot(number)
    assert len(subtask.state.tables["first"]) <= 3 * 7
    successor = restored(subtask, Interval(0, 1_000_000))
    assert sorted(row["v"] for row in successor.process(batch(1, [("a", 5, 0)]), 1)) == list(range(200))


@pytest.mark.parametrize("watermark", [0, 12])
def test_kept_rows_are_joined_within_narrower_bounds(watermark: int) -> None:
    """A restore may narrow the interval: the kept rows include all rows that may still match."""
    wide, narrow = Interval(-10, 10), Interval(-2, 3)
    before = harness(wide)
    before.process(batch(0, [("a", time, time) for time in range(0, 40, 2)]), 0)
    before.watermark(watermark)
    after = restored(before, narrow)
    output = after.process(batch(1, [("a", time, 0) for time in range(watermark, 40)]), 1)
    expected = [(value, at) for value in range(0, 40, 2) for at in range(watermark, 40) if -2 <= at - value <= 3]
    assert sorted(row["v"] for row in output) == sorted(value for value, _ in expected)


def test_a_hot_key_is_emitted_in_batches_of_limited_size() -> None:
    subtask = harness()
    subtask.process(batch(0, [("a", 0, number) for number in range(700)]), 0)
    subtask.process(batch(1, [("a", 1, number) for number in range(700)]), 1)
    assert sum(each.num_rows for each in subtask.out.batches) == 490_000
    assert max(each.num_rows for each in subtask.out.batches) <= 65_536


def test_times_that_are_far_apart() -> None:
    """Times whose difference exceeds 32 bits are in other buckets, and sorted all the same."""
    far = 1 << 45
    subtask = harness(Interval(-10, 10))
    subtask.process(batch(0, [("a", -far, 1), ("a", far, 2), ("a", 0, 3)]), 0)
    output = subtask.process(rows_of(key=["a", "a", "a"], at=pa.array([far, -far, 5]), w=[1, 2, 3]), 1)
    assert sorted((row["v"], row["w"]) for row in output) == [(1, 2), (2, 1), (3, 3)]


def test_rows_are_freed_without_snapshots() -> None:
    """A job without periodic checkpoints keeps no more rows than one with them."""
    subtask, before = harness(), pa.total_allocated_bytes()
    for number in range(200):
        time = number * 10
        subtask.process(rows_of(k=["a"], t=[time], v=["x" * 100_000]), 0)
        subtask.watermark(time)
    assert pa.total_allocated_bytes() - before < 5_000_000


def test_keys_of_rows_that_are_not_kept_are_forgotten() -> None:
    """Each first row comes after all second rows that it might match, so none is kept."""
    subtask = harness(Interval(-10, -5))
    for number in range(100):
        subtask.process(batch(0, [(f"{number} {place}", number, 0) for place in range(100)]), 0)
        subtask.watermark(number)
    join = subtask.operator
    assert isinstance(join, IntervalJoin)
    assert len(join._index) == 0
    assert all(len(codec) < 2_000 for codec in join._index._codecs if isinstance(codec, InternedCodec))


class TestColumns:
    def test_a_shared_key_comes_once_and_other_shared_names_need_suffixes(self) -> None:
        schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
        with pytest.raises(JobRejected, match="suffixes"):
            JoinColumns((("k", "k"),)).names(schema, schema)
        names = JoinColumns((("k", "k"),), ("_1", "_2"), ("when",)).names(schema, schema)
        assert names == ["k", "t_1", "v_1", "t_2", "v_2", "when"]
        assert JoinColumns((("k", "key"),)).names(LEFT, RIGHT) == ["k", "t", "v", "key", "at", "w"]

    def test_a_suffix_may_not_make_a_name_that_exists(self) -> None:
        left, right = (
            pa.schema([("k", pa.int64()), ("a", pa.int64())]),
            pa.schema([("k", pa.int64()), ("a", pa.int64()), ("a_2", pa.int64())]),
        )
        with pytest.raises(JobRejected, match="two columns") as caught:
            JoinColumns((("k", "k"),), ("", "_2")).names(left, right)
        assert caught.value.field == "a_2"

    def test_a_clash_is_refused_at_the_first_rows_of_both(self) -> None:
        subtask = Harness(
            IntervalJoin((JoinSide(("k",), "t"), JoinSide(("k",), "t")), Interval(0, 1), JoinColumns((("k", "k"),)))
        )
        subtask.process(rows_of(k=["a"], t=[1]), 0)
        with pytest.raises(JobRejected, match="two columns of the joined rows"):
            subtask.process(rows_of(k=["a"], t=[1]), 1)

    def test_dictionaries_and_narrow_keys_meet_plain_and_wide_keys(self) -> None:
        subtask = harness()
        coded = pa.array(["a", "b"]).dictionary_encode()
        subtask.process(
            pa.RecordBatch.from_arrays([coded, pa.array([1, 2]), pa.array([1, 2])], names=["k", "t", "v"]), 0
        )
        output = subtask.process(rows_of(key=["b"], at=[2], w=[5]), 1)
        assert [(row["k"], row["v"], row["w"]) for row in output] == [("b", 2, 5)]

    def test_keys_without_a_common_type_are_refused_at_the_first_rows_of_both(self) -> None:
        subtask = harness()
        subtask.process(rows_of(k=["a"], t=[1], v=[1]), 0)
        with pytest.raises(JobRejected, match="cast a column") as caught:
            subtask.process(rows_of(key=[1], at=[1], w=[1]), 1)
        assert caught.value.code == "bad-keys"


class TestRestore:
    def test_narrow_columns_are_widened(self) -> None:
        before = harness()
        before.process(rows_of(k=["a"], t=pa.array([1], pa.int32()), v=pa.array([7], pa.int32())), 0)
        after = restored(before)
        after.process(rows_of(k=["a"], t=[2], v=[1 << 40]), 0)
        output = after.process(batch(1, [("a", 3, 0)]), 1)
        assert sorted(row["v"] for row in output) == [7, 1 << 40]

    def test_kept_rows_have_the_declared_types_before_a_row_of_their_stream(self) -> None:
        """Joined rows had the former types, and later the new types: the attempt failed."""
        before = harness()
        before.process(rows_of(k=["a"], t=pa.array([1], pa.int32()), v=pa.array([7], pa.int32())), 0)
        flow = Dataflow("joined", required_guarantee="none")
        left, right = (
            flow.source(uid, Numbers(total=1)).flat_map(f"{uid}-rows", lambda row: [], columns)
            for uid, columns in zip(("left", "right"), SCHEMAS, strict=True)
        )
        bounds = timedelta(0), timedelta(milliseconds=10)
        keyed_join = left.key_by("k").interval_join(right.key_by("key"))
        keyed_join.between("pairs", *bounds, time=("t", "at")).sink("shown", PrintSink())
        join = flow.compile(1).operators[OperatorId("pairs")]()
        after = Harness(join, store=before.store, snapshots=[before.snapshot("chk-1")])
        after.process(batch(1, [("a", 3, 0)]), 1)
        after.process(batch(0, [("a", 2, 1 << 40)]), 0)
        first, second = after.out.batches
        assert first.schema == second.schema
        assert [row["v"] for row in after.out.rows()] == [7, 1 << 40]

    def test_declared_views_in_nested_columns_fit_the_kept_rows(self) -> None:
        """Channels carry no views, so kept rows have none."""
        state_schema, declared = (
            pa.schema([*LEFT, ("tags", pa.list_(kind)), ("s", pa.struct([("x", kind)]))])
            for kind in (pa.string(), pa.string_view())
        )
        before = harness()
        before.process(pa.RecordBatch.from_pylist([{"k": "a", "t": 1, "v": 7, "tags": ["x"]}], state_schema), 0)
        sides = JoinSide(("k",), "t", columns=declared), JoinSide(("key",), "at", columns=RIGHT)
        after = Harness(IntervalJoin(sides, TEN, COLUMNS), store=before.store, snapshots=[before.snapshot("chk-1")])
        after.process(batch(1, [("a", 3, 0)]), 1)
        assert [row["tags"] for row in after.out.rows()] == [["x"]]

    @pytest.mark.parametrize("columns", [{"k": ["a"], "t": [1]}, {"k": ["a"], "t": [1], "v": ["text"]}])
    def test_other_columns_are_refused(self, columns: dict[str, Any]) -> None:
        before = harness()
        before.process(batch(0, [("a", 1, 1)]), 0)
        after = restored(before)
        with pytest.raises(JobRejected, match="kept rows") as caught:
            after.process(rows_of(**columns), 0)
        assert caught.value.code == "state-columns-changed"

    def test_a_renamed_key_column_is_refused(self) -> None:
        before = harness()
        before.process(batch(0, [("a", 1, 1)]), 0)
        join = IntervalJoin((JoinSide(("id",), "t"), JoinSide(("key",), "at")), TEN, JoinColumns((("id", "key"),)))
        with pytest.raises(JobRejected, match="kept rows lack the columns id") as caught:
            Harness(join, store=before.store, snapshots=[before.snapshot("chk-1")])
        assert caught.value.code == "state-columns-changed"

    def test_rows_kept_by_other_keys_are_refused(self) -> None:
        """Their key groups belong to subtasks that do not receive the rows that they match."""
        before = harness()
        before.process(rows_of(k=list("abcdef"), t=[1] * 6, v=list("uvwxyz")), 0)
        join = IntervalJoin((JoinSide(("v",), "t"), JoinSide(("key",), "at")), TEN, JoinColumns((("v", "key"),)))
        with pytest.raises(JobRejected, match="kept by other keys than v") as caught:
            Harness(join, store=before.store, snapshots=[before.snapshot("chk-1")])
        assert caught.value.code == "state-keys-changed"
