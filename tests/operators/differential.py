"""The life of an operator's state against an operator without one.

A *case* is a random stream for an operator. The reference processes it in one subtask without a snapshot. The subject
takes checkpoints and savepoints on a disk that fails, merges its files by a random policy, loses files to retention,
crashes, and restores at one to seven subtasks. Both emit the same rows.

`python -m tests.operators.differential` tries many cases; a difference is printed with the command that repeats it.
"""

import argparse
import sys
import time
from collections import Counter as Multiset
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from runtime.core.job.messages import MAX_WATERMARK
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.operators import broadcast_join, counted_extremes, latest, running_aggregate
from runtime.operators.aggregates import Count, Max, Mean, Min, Sum
from runtime.operators.broadcast_join import BroadcastJoin
from runtime.operators.functions import function, keyed_process, micro_batches
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcess, KeyedProcessFunction, ProcessContext
from runtime.operators.functions.micro_batches import Batches, BatchLimits
from runtime.operators.joins import two_streams
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.interval import Interval, IntervalJoin
from runtime.operators.joins.two_streams import JoinSide
from runtime.operators.joins.window import WINDOW_COLUMNS, WindowJoin
from runtime.operators.latest import Latest
from runtime.operators.output_tag import OutputTag
from runtime.operators.partition import owners_of_groups
from runtime.operators.retraction import DELETE, INSERT
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows import deduplicate, fired_watermarks, session, window
from runtime.operators.windows.deduplicate import Deduplicate
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.retracting_session import RetractingSessionWindow
from runtime.operators.windows.session import SessionWindow
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.operators.windows.window import RowInput
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.files.compaction import CompactionPolicy
from runtime.state.index.hashing import key_groups
from tests.operators.combined import Combined
from tests.operators.harness import Harness
from tests.state.failing_store import DiskFull, FailingStore
from tests.state.retaining import Taken, retained

SIZE_MS, PANE_MS, GAP_MS, DISORDER_MS = 80, 20, 9, 12  #: rows live for several checkpoints
STEPS: Final = 40
CHECKPOINT_SHARE, RESTORE_SHARE, FINISH_CHANCE = 0.4, 0.12, 0.8
MAX_PARALLELISM: Final = (4, 16, 128)
RESTORED_PARALLELISM: Final = 7
ROWS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
TEXTS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("text", pa.string())])
LATE = OutputTag("late", ROWS)
LATE_CHANGES = OutputTag("late", ROWS.append(pa.field("op", pa.string())))
AGGREGATES = {"n": Count(), "total": Sum("v"), "low": Min("v"), "high": Max("v"), "mean": Mean("v")}
SIDES = (JoinSide(("k",), "t", LATE), JoinSide(("k",), "t", LATE))

Event = tuple[str, int, Any]  #: rows of an input, or a watermark
Rows = Multiset[tuple[Any, ...]]


class Totals(KeyedProcessFunction):
    """Every form of keyed state, and an event timer per row."""

    def open(self, context: ProcessContext) -> None:
        self._total = context.value_state("total")
        self._seen = context.list_state("seen")
        self._by_parity = context.map_state("parity")

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        self._total.update((self._total.get() or 0) + row["v"])
        self._seen.add(row["v"])
        parity = str(row["v"] % 3)
        self._by_parity[parity] = self._by_parity.get(parity, 0) + 1
        context.register_event_timer(row["t"] + SIZE_MS)
        if row["v"] % 11 == 0:
            self._seen.clear()
            del self._by_parity[parity]
        out.emit(self._row(context, row["t"]))

    def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
        out.emit(self._row(context, -timestamp_ms))

    def _row(self, context: Any, at: int) -> dict[str, Any]:
        text = f"{self._total.get()} {self._seen.get()} {sorted(dict(self._by_parity).items())}"
        return {"k": context.current_key, "t": at, "text": text}


class Signed(Operator):
    """A window of a changelog. A third of the rows are taken back, more than have arrived: the state keeps both."""

    def __init__(self, window: Operator) -> None:
        self._window = window

    def open(self, context: OperatorContext) -> None:
        self._window.open(context)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        ops = [DELETE if value % 3 == 0 else INSERT for value in batch.column("v").to_pylist()]
        self._window.process(input, batch.append_column("op", pa.array(ops)), out)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._window.on_watermark(watermark, out)

    def snapshot(self, checkpoint: int) -> None:
        self._window.snapshot(checkpoint)


def _panes(pane_ms: int) -> WindowPreAggregator:
    return WindowPreAggregator(["k"], "t", pane_ms, AGGREGATES)


def _identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True)
class Kind:
    """An operator, the modules whose state it shows, and how many inputs it has."""

    make: Callable[[], Operator]
    modules: tuple[Any, ...]
    inputs: int = 1
    broadcasts: int | None = None  #: an input all of whose rows go to all subtasks, first


KINDS: Final[Mapping[str, Kind]] = {
    "interval join": Kind(
        lambda: IntervalJoin(SIDES, Interval(-SIZE_MS, SIZE_MS), JoinColumns((("k", "k"),), ("", "_2"), ("when",)), 10),
        (two_streams,),
        inputs=2,
    ),
    "window join": Kind(
        lambda: WindowJoin(SIDES, SIZE_MS, SIZE_MS // 2, JoinColumns((("k", "k"),), ("", "_2"), WINDOW_COLUMNS)),
        (two_streams,),
        inputs=2,
    ),
    "tumbling window": Kind(
        lambda: Combined(_panes(SIZE_MS), TumblingWindow(["k"], SIZE_MS, AGGREGATES)),
        (window, fired_watermarks),
    ),
    "sliding window": Kind(
        lambda: Combined(_panes(PANE_MS), SlidingWindow(["k"], SIZE_MS, PANE_MS, AGGREGATES)),
        (window, fired_watermarks),
    ),
    "tumbling window of a changelog": Kind(
        lambda: Signed(TumblingWindow(["k"], SIZE_MS, AGGREGATES, RowInput("t", SIZE_MS, None, None))),
        (window, fired_watermarks, counted_extremes),
    ),
    "sliding window of a changelog": Kind(
        lambda: Signed(SlidingWindow(["k"], SIZE_MS, PANE_MS, AGGREGATES, RowInput("t", PANE_MS, None, None))),
        (window, fired_watermarks, counted_extremes),
    ),
    "session window of a changelog": Kind(
        lambda: Signed(RetractingSessionWindow(["k"], GAP_MS, "t", AGGREGATES, LATE_CHANGES)),
        (session, counted_extremes),
    ),
    "session window": Kind(lambda: SessionWindow(["k"], GAP_MS, "t", AGGREGATES, LATE), (session,)),
    "deduplicate": Kind(lambda: Deduplicate(["k"], SIZE_MS, "t", LATE), (deduplicate, fired_watermarks)),
    "running aggregate": Kind(lambda: RunningAggregate(["k"], AGGREGATES), (running_aggregate,)),
    "latest": Kind(lambda: Latest(["k"], "t"), (latest,)),
    "keyed process": Kind(
        lambda: KeyedProcess(Totals(), ["k"], TEXTS, "t"),
        (keyed_process,),
    ),
    "batches": Kind(lambda: Batches(["k"], _identity, BatchLimits(7, None)), (micro_batches,)),
    "broadcast join": Kind(lambda: BroadcastJoin(["k"], ["name"]), (broadcast_join,), inputs=2, broadcasts=1),
}
#: modules of operators with state that no kind has, and why
LEFT_OUT: Final = {
    "runtime.operators.functions.async_map": "rows come in the order of answers; tests/jobs/test_held_rows.py",
    "runtime.operators.functions.process": "lists are in the manifest; tests/jobs/test_subtask_state.py",
    "runtime.operators.functions.set_aside": "times are in the manifest; tests/operators/functions/test_set_aside.py",
    function.__name__: "rules of a broadcast function; tests/jobs/test_subtask_state.py",
}


class Subject:
    """The subtasks of an attempt."""

    def __init__(
        self, case: "Case", parallelism: int, store: FailingStore, snapshots: Sequence[SubtaskSnapshot]
    ) -> None:
        self._case, self._groups = case, case.max_parallelism
        self._owners = owners_of_groups(case.max_parallelism, parallelism)
        self.tasks = [
            Harness(
                case.kind.make(),
                store=store,
                snapshots=snapshots,
                broadcast=next((snapshot for snapshot in snapshots if snapshot.broadcast), None),
                index=index,
                parallelism=parallelism,
                max_parallelism=case.max_parallelism,
                compaction=case.policy,
            )
            for index in range(parallelism)
        ]

    def emitted(self) -> Rows:
        """The rows that were emitted so far."""
        return self._emitted([(0, 0)] * len(self.tasks))

    def process(self, event: Event) -> Rows:
        what, number, payload = event
        before = [(len(task.out.batches), len(task.out.side)) for task in self.tasks]
        for index, task in enumerate(self.tasks):
            if what == "watermark":
                task.operator.on_watermark(number, task.out)
            elif self._case.kind.broadcasts == number:
                task.operator.process(number, payload, task.out)
            else:
                owners = self._owners[key_groups(payload, ["k"], self._groups)]
                part = payload.filter(pa.array(owners == index))
                if part.num_rows:
                    task.operator.process(number, part, task.out)
        return self._emitted(before)

    def finish(self) -> Rows:
        before = [(len(task.out.batches), len(task.out.side)) for task in self.tasks]
        for task in self.tasks:
            task.operator.on_watermark(MAX_WATERMARK, task.out)
            for number in range(self._case.kind.inputs):
                task.operator.end_input(number, task.out)
            task.operator.finish(task.out)
        return self._emitted(before)

    def _emitted(self, before: Sequence[tuple[int, int]]) -> Rows:
        rows: Rows = Multiset()
        for task, (batches, late) in zip(self.tasks, before, strict=True):
            rows.update(("out", *sorted(row.items())) for row in task.out.rows(batches))
            rows.update(("late", *sorted(row.items())) for _, part in task.out.side[late:] for row in part.to_pylist())
        return rows


@dataclass
class Case:
    """A random stream for an operator, and the life of its state."""

    name: str
    seed: int
    kind: Kind = field(init=False)
    events: list[Event] = field(init=False)
    checkpoints: int = 0  #: completed
    restores: int = 0

    def __post_init__(self) -> None:
        self._retained: list[Taken[tuple[int, Rows]]] = []
        self._newest: Taken[tuple[int, Rows]] | None = None  #: checkpoint or savepoint, to be restored
        self.kind = KINDS[self.name]
        self._rng = rng = Random(f"{self.name} {self.seed}")
        self.max_parallelism = rng.choice(MAX_PARALLELISM)
        self.policy = CompactionPolicy(
            max_deltas=rng.randint(2, 4),
            copied_bytes=rng.choice([0, 0, 2_000]),
            base_bytes=rng.choice([0, 0, 2_000]),
            inline_bytes=rng.choice([0, 0, 3_000]),
            slice_bytes=rng.choice([1, 2_000, 1 << 24]),
        )
        self._keys = [f"key {number}" for number in range(rng.choice([1, 3, 12, 40]))]
        self.events = list(self._random_events(rng.randint(STEPS // 2, STEPS)))

    def _random_events(self, count: int) -> list[Event]:
        rng, now, events = self._rng, 0, list[Event]()
        if self.kind.broadcasts is not None:
            names = pa.record_batch({"k": self._keys, "name": [key.upper() for key in self._keys]})
            events.append(("rows", self.kind.broadcasts, names))
        streams = [number for number in range(self.kind.inputs) if number != self.kind.broadcasts]
        for _ in range(count):
            now += rng.choice([0, 1, 3, 3, 15])
            if rng.random() < 0.2:
                events.append(("watermark", now - rng.choice([0, DISORDER_MS]), None))
            else:
                rows = [
                    (rng.choice(self._keys), now - rng.randrange(DISORDER_MS + 4), rng.randrange(1_000))
                    for _ in range(rng.randint(1, 9))
                ]
                columns = [
                    pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), ROWS.types, strict=True)
                ]
                events.append(("rows", rng.choice(streams), pa.RecordBatch.from_arrays(columns, schema=ROWS)))
        return events

    def reference(self) -> Rows:
        """The rows that the operator emits in one subtask without a snapshot."""
        subject = Subject(self, 1, FailingStore(), ())
        rows = subject.emitted()
        for event in self.events:
            rows += subject.process(event)
        return rows + subject.finish()

    def check(self) -> str:
        """The difference of the two outputs; "" if there is none."""
        expected, actual = self.reference(), self.output()
        missing, surplus = expected - actual, actual - expected
        if not missing and not surplus:
            return ""
        lines = [f"{sign} {row}" for sign, rows in (("-", missing), ("+", surplus)) for row in list(rows)[:3]]
        return "\n".join([f"{sum(missing.values())} rows missing, {sum(surplus.values())} more", *lines])

    def output(self) -> Rows:
        """The rows that the subject emits, each once: a restore forgets the rows after its checkpoint."""
        rng, store = self._rng, FailingStore()
        subject = Subject(self, rng.randint(1, 4), store, ())
        position, rows = 0, subject.emitted()
        for number in range(1, 4 * len(self.events)):
            chance = rng.random()
            if chance < CHECKPOINT_SHARE:
                self._checkpoint(subject, store, number, (position, rows.copy()))
            elif chance < CHECKPOINT_SHARE + RESTORE_SHARE and self._newest is not None:
                (position, rows), snapshots = self._newest
                parallelism = rng.randint(1, min(RESTORED_PARALLELISM, self.max_parallelism))
                subject = Subject(self, parallelism, store, snapshots)
                rows = rows + subject.emitted()
                self.restores += 1
            if position < len(self.events):
                rows += subject.process(self.events[position])
                position += 1
            elif chance > FINISH_CHANCE:
                break
        for event in self.events[position:]:
            rows += subject.process(event)
        return rows + subject.finish()

    def _checkpoint(self, subject: Subject, store: FailingStore, number: int, at: tuple[int, Rows]) -> None:
        """Takes a checkpoint or a savepoint, whose writes fail now and then, and merges files."""
        rng = self._rng
        full = rng.random() < 0.15
        folder = f"{'savepoint' if full else 'chk'}-{number}-{1 + self.restores}"
        for task in subject.tasks:
            task.operator.snapshot(number)
        captures = [task.state.capture(full) for task in subject.tasks]
        try:
            with store.failing_after(rng.choice([0, 3, 9]) if rng.random() < 0.2 else None):
                snapshots = [capture.write(store, f"{folder}/op-{index}")[0] for index, capture in enumerate(captures)]
        except DiskFull:
            return
        self.checkpoints += 1
        self._newest = (at, snapshots)
        if full:  # it displaces no checkpoint, and retention leaves its files
            return
        self._retained = retained(store, [*self._retained, (at, snapshots)])
        with suppress(DiskFull), store.failing_after(rng.choice([0, 2]) if rng.random() < 0.1 else None):
            for index, capture in enumerate(captures):
                capture.compact(store, f"{folder}/op-{index}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.operators.differential", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2_000, help="number of cases, over all operators")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--replay", nargs=2, metavar=("OPERATOR", "SEED"), help="one case, as printed")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + -(-options.cases // len(KINDS)))
    cases = [(name, seed) for seed in seeds for name in KINDS][: options.cases]
    if options.replay:
        cases = [(options.replay[0], int(options.replay[1]))]
    differences, checkpoints, restores, started = 0, 0, 0, time.monotonic()
    for name, seed in cases:
        case = Case(name, seed)
        try:
            difference = case.check()
        except Exception as error:
            difference = f"{type(error).__name__}: {error}"
        checkpoints, restores = checkpoints + case.checkpoints, restores + case.restores
        if difference:
            differences += 1
            sys.stdout.write(f"{name!r} {seed}: {difference}\n")
            sys.stdout.write(f"  repeat: python -m tests.operators.differential --replay {name!r} {seed}\n")
    took = time.monotonic() - started
    sys.stdout.write(
        f"{len(cases)} cases, {checkpoints} checkpoints, {restores} restores, {differences} differences, {took:.0f} s\n"
    )
    return 1 if differences else 0


def modules_with_state() -> set[str]:
    """The modules of operators that declare keyed or broadcast state."""
    root = Path(broadcast_join.__file__).parents[2]
    states = ("keyed_table", "object_table", "broadcast_table", "broadcast_map", "list_state")
    calls = tuple(f"context.state.{state}(" for state in states)
    return {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in (root / "runtime" / "operators").rglob("*.py")
        if any(call in path.read_text(encoding="utf-8") for call in calls)
    }


if __name__ == "__main__":
    sys.exit(main())
