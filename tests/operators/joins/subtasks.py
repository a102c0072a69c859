"""Subtasks of an operator with two keyed inputs, driven by hand: batches, watermarks, snapshots, rescales."""

from collections import Counter as Multiset
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
from hypothesis import strategies as st

from runtime.core.job.messages import MIN_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.joins.two_streams import JoinSide
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.operators.output_tag import OutputTag
from runtime.operators.partition import partition_by_key_group
from runtime.ports import Operator
from tests.operators.harness import Harness

Event = tuple[str | None, int, int]  # key, time, value
KEYS = ["a", "b", "d" * 70, None]
LEFT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
RIGHT = pa.schema([("key", pa.large_string()), ("at", pa.timestamp("ms")), ("w", pa.int64())])
SCHEMAS = (LEFT, RIGHT)
LATE = (OutputTag("late left", LEFT), OutputTag("late right", RIGHT))
SIDES = (JoinSide(("k",), "t", LATE[0]), JoinSide(("key",), "at", LATE[1]))
EVENTS = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-5, 20), st.integers(0, 3)), min_size=1, max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(0, 1), EVENTS),
        st.tuples(st.just("watermark"), st.integers(-5, 22), st.sampled_from([None, 0, 1, 2])),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("restore"), st.sampled_from([1, 3, 7]), st.booleans()),
    ),
    min_size=4,
    max_size=30,
)


def unequal_watermarks(index: int) -> list[Any]:
    """Steps: a subtask is ahead of the others when all merge into one; then rows that are late for its keys only."""
    early, late = ([(key, time, 1) for key in KEYS] for time in (4, 3))
    return [
        ("rows", 0, early),
        ("rows", 1, early),
        ("watermark", 5, index),
        ("restore", 1, False),
        ("rows", 0, late),
        ("rows", 1, late),
        ("watermark", 6, None),
    ]


def batch(input: int, events: list[Event]) -> pa.RecordBatch:
    columns = list(zip(*events, strict=True)) if events else [(), (), ()]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCHEMAS[input].types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[input])


class Subtasks:
    """The subtasks of an operator, restored from each other's snapshots at other parallelisms."""

    def __init__(self, create: Callable[[], Operator], parallelism: int) -> None:
        self.create = create
        self.store, self.checkpoints, self.gone = MemorySnapshotStore(), 0, list[Harness]()
        self.now = self.deploy(parallelism, [])

    def deploy(self, parallelism: int, snapshots: list[SubtaskSnapshot]) -> list[Harness]:
        return [
            Harness(self.create(), store=self.store, snapshots=snapshots, index=index, parallelism=parallelism)
            for index in range(parallelism)
        ]

    def snapshot(self, *, full: bool = False) -> list[SubtaskSnapshot]:
        self.checkpoints += 1
        return [subtask.snapshot(f"chk-{self.checkpoints}", full=full) for subtask in self.now]

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

    def watermark(self, time: int, index: int | None = None) -> list[str | None]:
        """Advances all subtasks, or one of them if it exists. Returns the keys that it owns."""
        advanced = [subtask for subtask in self.now if index is None or subtask.context.index == index]
        for subtask in advanced:
            subtask.watermark(time)
        owners = partition_by_key_group(batch(0, [(key, 0, 0) for key in KEYS]), ["k"], 16, len(self.now))
        parts = (owners[subtask.context.index] for subtask in advanced)
        return [key for part in parts if part is not None for key in part.column("k").to_pylist()]

    @property
    def every(self) -> list[Harness]:
        return [*self.gone, *self.now]

    def pairs(self, *added: str) -> Multiset[Any]:
        """The joined rows: both records, and the columns `added` as milliseconds."""
        pairs: Multiset[Any] = Multiset()
        for row in (row for subtask in self.every for row in subtask.out.rows()):
            at, *times = (int(row[name].timestamp() * 1000) for name in ("at", *added))
            pairs[(row["k"], row["t"], row["v"]), (row["key"], at, row["w"]), *times] += 1
        return pairs

    @property
    def late(self) -> Multiset[tuple[int, Event]]:
        late_rows: Multiset[tuple[int, Event]] = Multiset()
        for name, rows in (side for subtask in self.every for side in subtask.out.side):
            number = [tag.name for tag in LATE].index(name)
            times = rows.column(1).cast(pa.int64()).to_pylist()
            for key, time, value in zip(rows.column(0).to_pylist(), times, rows.column(2).to_pylist(), strict=True):
                late_rows[number, (key, time, value)] += 1
        return late_rows

    @property
    def counted(self) -> int:
        return sum(subtask.context.counters.get(LATE_RECORDS_COUNTER, 0) for subtask in self.every)


class TwoStreamOracle(Protocol):
    """The answer, record by record."""

    def process(self, input: int, events: list[Event]) -> None: ...
    def advance(self, keys: list[str | None], watermark: int) -> None:
        """The subtask that owns `keys` gets a watermark."""


class Oracle:
    """A loop over records. Each key has a watermark of its own: that of the subtask that owns it."""

    def __init__(self) -> None:
        self.seen: tuple[list[Event], list[Event]] = ([], [])
        self.watermarks: dict[str | None, int] = dict.fromkeys(KEYS, MIN_WATERMARK)
        self.late: Multiset[tuple[int, Event]] = Multiset()
        self.pairs: Multiset[Any] = Multiset()

    def process(self, input: int, events: list[Event]) -> None:
        for event in events:
            if self.is_late(event[1], self.watermarks[event[0]]):
                self.late[input, event] += 1
                continue
            self.seen[input].append(event)
            for other in self.seen[1 - input]:
                if event[0] is not None and event[0] == other[0]:
                    self.meet(*((event, other) if input == 0 else (other, event)))

    def advance(self, keys: list[str | None], watermark: int) -> None:
        for key in keys:
            self.watermarks[key] = max(self.watermarks[key], watermark)

    def is_late(self, time: int, watermark: int) -> bool:
        raise NotImplementedError

    def meet(self, record: Event, other: Event) -> None:
        """Called with each two records of equal keys when the second has arrived."""
        raise NotImplementedError


def run(create: Callable[[], Operator], oracle: TwoStreamOracle, steps: list[Any]) -> Subtasks:
    """Applies the steps to the subtasks and to the oracle."""
    subtasks = Subtasks(create, 3)
    for kind, *values in steps:
        if kind == "rows":
            number, events = values
            oracle.process(number, events)
            subtasks.process(number, events)
        elif kind == "watermark":
            time, index = values
            oracle.advance(subtasks.watermark(time, index), time)
        elif kind == "snapshot":
            subtasks.snapshot()
        else:
            subtasks.restore(values[0], full=values[1])
    return subtasks
