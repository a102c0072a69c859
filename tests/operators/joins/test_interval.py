"""Interval joins against a loop over records: disorder, lateness, restores at another parallelism, columns."""

from collections import Counter as Multiset
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.errors import JobRejected
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.interval import Interval, IntervalJoin
from runtime.operators.joins.two_streams import JoinSide
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.output_tag import OutputTag
from runtime.operators.partition import partition_by_key_group
from tests.operators.harness import Harness

Event = tuple[str | None, int, int]  # key, time, value
LEFT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
RIGHT = pa.schema([("key", pa.large_string()), ("at", pa.timestamp("ms")), ("w", pa.int64())])
SCHEMAS = (LEFT, RIGHT)
LATE = (OutputTag("late left", LEFT), OutputTag("late right", RIGHT))
COLUMNS = JoinColumns((("k", "key"),), added=("when",))


def join(interval: Interval, bucket_ms: int = 7) -> IntervalJoin:
    return IntervalJoin(
        (JoinSide(("k",), "t", LATE[0]), JoinSide(("key",), "at", LATE[1])), interval, COLUMNS, bucket_ms
    )


def batch(input: int, events: list[Event]) -> pa.RecordBatch:
    columns = list(zip(*events, strict=True)) if events else [(), (), ()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCHEMAS[input].types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[input])


class Oracle:
    """One record at a time; no row is ever freed."""

    def __init__(self, interval: Interval) -> None:
        self.interval = interval
        self.seen: tuple[list[Event], list[Event]] = ([], [])
        self.watermark = MIN_WATERMARK
        self.late: Multiset[tuple[int, Event]] = Multiset()
        self.pairs: Multiset[Any] = Multiset()

    def process(self, input: int, events: list[Event]) -> None:
        for event in events:
            if event[1] < self.watermark:
                self.late[input, event] += 1
                continue
            self.seen[input].append(event)
            for other in self.seen[1 - input]:
                one, two = (event, other) if input == 0 else (other, event)
                is_within = self.interval.lower_ms <= two[1] - one[1] <= self.interval.upper_ms
                if one[0] is not None and one[0] == two[0] and is_within:
                    self.pairs[one, two, max(one[1], two[1])] += 1


class Subtasks:
    """The subtasks of a join, restored from each other's snapshots at other parallelisms."""

    def __init__(self, interval: Interval, parallelism: int) -> None:
        self.interval = interval
        self.store, self.checkpoints, self.gone = MemorySnapshotStore(), 0, list[Harness]()
        self.now = self.deploy(parallelism, [])

    def deploy(self, parallelism: int, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
        return [
            Harness(join(self.interval), store=self.store, snapshots=snapshots, index=index, parallelism=parallelism)
            for index in range(parallelism)
        ]

    def snapshot(self, *, full: bool = False) -> list[SubtaskSnapshot]:
        self.checkpoints += 1
        return [one.snapshot(f"chk-{self.checkpoints}", full=full) for one in self.now]

    def restore(self, parallelism: int, *, full: bool = False) -> None:
        snapshots = self.snapshot(full=full)
        self.gone += self.now
        self.now = self.deploy(parallelism, snapshots)

    def process(self, input: int, events: list[Event]) -> None:
        keys = [("k",), ("key",)][input]
        parts = partition_by_key_group(batch(input, events), keys, 16, len(self.now))
        for subtask, part in zip(self.now, parts, strict=True):
            if part is not None:
                subtask.process(part, input)

    def watermark(self, time: int) -> None:
        for subtask in self.now:
            subtask.watermark(time)

    @property
    def every(self) -> list[Harness]:
        return [*self.gone, *self.now]

    @property
    def pairs(self) -> Multiset[Any]:
        found: Multiset[Any] = Multiset()
        for row in (row for one in self.every for row in one.out.rows()):
            at, when = (int(row[name].timestamp() * 1000) for name in ("at", "when"))
            found[(row["k"], row["t"], row["v"]), (row["key"], at, row["w"]), when] += 1
        return found

    @property
    def late(self) -> Multiset[tuple[int, Event]]:
        found: Multiset[tuple[int, Event]] = Multiset()
        for name, rows in (side for one in self.every for side in one.out.side):
            number = [tag.name for tag in LATE].index(name)
            times = rows.column(1).cast(pa.int64()).to_pylist()
            for key, time, value in zip(rows.column(0).to_pylist(), times, rows.column(2).to_pylist(), strict=True):
                found[number, (key, time, value)] += 1
        return found

    @property
    def counted(self) -> int:
        return sum(one.context.counters.get(LATE_RECORDS_COUNTER, 0) for one in self.every)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ccc", "d" * 70, None]), st.integers(-40, 60), st.integers(0, 9))
)
INTERVALS = st.builds(lambda lower, length: Interval(lower, lower + length), st.integers(-30, 30), st.integers(0, 40))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(0, 1), EVENTS),
        st.tuples(st.just("watermark"), st.integers(-50, 80)),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("restore"), st.sampled_from([1, 3, 7]), st.booleans()),
    ),
    max_size=25,
)


TEN = Interval(0, 10)


def harness(interval: Interval = TEN, columns: JoinColumns = COLUMNS) -> Harness:
    return Harness(IntervalJoin((JoinSide(("k",), "t"), JoinSide(("key",), "at")), interval, columns, 10))


def restored(before: Harness, interval: Interval = TEN) -> Harness:
    join = IntervalJoin((JoinSide(("k",), "t"), JoinSide(("key",), "at")), interval, COLUMNS, 10)
    return Harness(join, store=before.store, snapshots=[before.snapshot("chk-1")])


def rows_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@settings(deadline=None)
@given(INTERVALS, STEPS)
def test_pairs_and_late_rows_are_those_of_a_loop_over_records(interval: Interval, steps: list[Any]) -> None:
    """Batches, watermarks, snapshots and rescales in any order."""
    oracle, subtasks = Oracle(interval), Subtasks(interval, 3)
    for kind, *values in steps:
        if kind == "rows":
            number, events = values
            oracle.process(number, events)
            subtasks.process(number, events)
        elif kind == "watermark":
            oracle.watermark = max(oracle.watermark, values[0])
            subtasks.watermark(values[0])
        elif kind == "snapshot":
            subtasks.snapshot()
        else:
            subtasks.restore(values[0], full=values[1])
    assert subtasks.pairs == oracle.pairs
    assert subtasks.late == oracle.late
    assert subtasks.counted == oracle.late.total()


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
    assert join.kept_rows == (0, 0)
    assert join.kept_keys == 0


def test_parts_stay_few_with_many_snapshots() -> None:
    """Each snapshot adds a part; parts of a bucket are merged in tiers of eight."""
    subtask = harness(Interval(0, 1_000_000))
    for number in range(200):
        subtask.process(batch(0, [("a", 0, number)]), 0)
        subtask.operator.snapshot(number)
    assert len(subtask.state.tables["first"]) <= 3 * 7
    again = restored(subtask, Interval(0, 1_000_000))
    assert sorted(row["v"] for row in again.process(batch(1, [("a", 5, 0)]), 1)) == list(range(200))


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
    found = subtask.process(rows_of(key=["a", "a", "a"], at=pa.array([far, -far, 5]), w=[1, 2, 3]), 1)
    assert sorted((row["v"], row["w"]) for row in found) == [(1, 2), (2, 1), (3, 3)]


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
        found = subtask.process(rows_of(key=["b"], at=[2], w=[5]), 1)
        assert [(row["k"], row["v"], row["w"]) for row in found] == [("b", 2, 5)]

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
        found = after.process(batch(1, [("a", 3, 0)]), 1)
        assert sorted(row["v"] for row in found) == [7, 1 << 40]

    @pytest.mark.parametrize("columns", [{"k": ["a"], "t": [1]}, {"k": ["a"], "t": [1], "v": ["text"]}])
    def test_other_columns_are_refused(self, columns: dict[str, Any]) -> None:
        before = harness()
        before.process(batch(0, [("a", 1, 1)]), 0)
        after = restored(before)
        with pytest.raises(JobRejected, match="kept rows") as caught:
            after.process(rows_of(**columns), 0)
        assert caught.value.code == "state-columns-changed"
