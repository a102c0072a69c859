"""Functions on streams without keys: every hook, lists and unions, timers, broadcast rows."""

from textwrap import dedent
from typing import Any

import pyarrow as pa
import pytest

from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import JobRejected, WeirError
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.operators.functions import process as plain_process
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import (
    KeyedBroadcastProcessFunction,
    KeyedProcess,
    KeyedProcessFunction,
    ProcessContext,
)
from runtime.operators.functions.process import BroadcastProcessFunction, Process, ProcessFunction, SubtaskContext
from runtime.operators.partition import partition_by_key_group
from tests.manual_clock import ManualClock
from tests.operators.harness import Harness

SCHEMA = pa.schema([("v", pa.int64()), ("text", pa.string())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["v"] for row in rows]


def permit(checkpoint: int) -> Any:
    return permit_from_master("job", Token(7), CheckpointId(checkpoint))


# ---------------------------------------------------------------- hooks


def told(log: list[Any], base: Any) -> Any:
    """A function of kind `base` that notes every hook, and emits wherever it is given a collector."""

    class Told(base):  # one body for both kinds
        def open(self, context: Any) -> None:
            log.append(("open", context.restored, context.index, context.parallelism))

        def start(self, context: Any, out: RowCollector) -> None:
            out.emit({"text": "start"})

        def process(self, row: Any, context: Any, out: RowCollector) -> None:
            out.emit({"text": "process"})

        def snapshot(self, checkpoint: int) -> None:
            log.append(("snapshot", checkpoint))

        def checkpoint_completed(self, checkpoint: int) -> None:
            log.append(("completed", checkpoint))

        def checkpoint_aborted(self, checkpoint: int) -> None:
            log.append(("aborted", checkpoint))

        def end_input(self, input: int, context: Any, out: RowCollector) -> None:
            out.emit({"text": f"end of input {input}"})

        def finish(self, context: Any, out: RowCollector) -> None:
            out.emit({"text": "finish"})

        def close(self) -> None:
            log.append("close")

    return Told()


@pytest.mark.parametrize("keyed", [False, True])
def test_a_function_hears_of_everything_that_happens_to_its_subtask(keyed: bool) -> None:
    """S1-33, S3-34, S3-38."""
    log: list[Any] = []
    function = told(log, KeyedProcessFunction if keyed else ProcessFunction)
    operator = KeyedProcess(function, ["v"], SCHEMA) if keyed else Process(function, SCHEMA)
    harness = Harness(operator, index=2, parallelism=3)
    harness.process(batch(1))
    harness.snapshot("chk-1")
    operator.checkpoint_completed(permit(1))
    operator.checkpoint_aborted(2)
    harness.finish()
    operator.close()
    assert log == [("open", False, 2, 3), ("snapshot", 1), ("completed", 1), ("aborted", 2), "close"]
    assert [row["text"] for row in harness.out.rows()] == ["start", "process", "end of input 0", "finish"]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_restoring_and_starting_fresh_are_told_apart(parallelism: int) -> None:
    """S1-33, S3-33, S3-34: also after a rescale."""
    log: list[Any] = []
    store = MemorySnapshotStore()
    before = Harness(Process(told(log, ProcessFunction), SCHEMA), store=store)
    snapshot = before.snapshot("chk-1")
    for index in range(parallelism):
        successor = Process(told(log, ProcessFunction), SCHEMA)
        Harness(successor, store=store, snapshots=[snapshot], index=index, parallelism=parallelism)
    opened = [entry for entry in log if entry[0] == "open"]
    assert opened == [("open", False, 0, 1), *(("open", True, index, parallelism) for index in range(parallelism))]


# ---------------------------------------------------------------- buffers, lists and unions


class Buffer(ProcessFunction):
    """Holds rows back until a timer; what was restored leaves first."""

    def __init__(self, wait_ms: int = 10, union: bool = False) -> None:
        self._wait_ms, self._union = wait_ms, union
        self._rows: list[int] = []

    def open(self, context: SubtaskContext) -> None:
        self._stored = context.union_list_state("rows") if self._union else context.list_state("rows")
        entries = self._stored.get()
        self._restored = [v for v in entries if v % context.parallelism == context.index] if self._union else entries

    def start(self, context: SubtaskContext, out: RowCollector) -> None:
        for value in self._restored:
            out.emit({"v": value})

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        self._rows.append(row["v"])
        context.register_processing_timer(context.now_ms() + self._wait_ms)

    def on_timer(self, timestamp_ms: int, context: SubtaskContext, out: RowCollector) -> None:
        self._flush(out)

    def finish(self, context: SubtaskContext, out: RowCollector) -> None:
        self._flush(out)

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace(self._rows)

    def _flush(self, out: RowCollector) -> None:
        for value in self._rows:
            out.emit({"v": value})
        self._rows = []


def test_what_was_restored_leaves_before_what_is_new_without_a_new_row() -> None:
    """S3-37, S3-38, S3-39."""
    before = Harness(Process(Buffer(), SCHEMA))
    before.process(batch(5, 6, 7))
    lists = before.snapshot("chk-1").lists
    successor = Harness(Process(Buffer(), SCHEMA), lists=lists)
    assert values(successor.out.rows()) == [5, 6, 7]
    successor.process(batch(8, 9))
    assert values(successor.finish()) == [8, 9]


def test_the_second_snapshot_holds_only_what_is_buffered_now() -> None:
    """S3-32."""
    harness = Harness(Process(Buffer(), SCHEMA))
    harness.process(batch(1, 2))
    first = harness.snapshot("chk-1").lists["rows"]
    harness.clock.advance(10)
    harness.tick()
    harness.process(batch(3))
    assert (first, harness.snapshot("chk-2").lists["rows"]) == ((1, 2), (3,))


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 1), (2, 2)])
def test_each_entry_of_a_union_list_is_taken_by_exactly_one(old: int, new: int) -> None:
    """S3-28."""
    entries: list[Any] = []
    for index in range(old):
        harness = Harness(Process(Buffer(union=True), SCHEMA), index=index, parallelism=old)
        harness.process(batch(*range(index, 20, old)))
        entries += harness.snapshot("chk-1").unions["rows"]
    output = []
    for index in range(new):
        successor = Harness(
            Process(Buffer(union=True), SCHEMA), unions={"rows": tuple(entries)}, index=index, parallelism=new
        )
        output += values(successor.out.rows())
    assert sorted(output) == list(range(20))


def test_rows_buffered_in_a_list_part_from_their_keys_in_a_rescale() -> None:
    """S3-18: why micro-batches are keyed state: lists are dealt by count, new rows by key."""
    before = Harness(Process(Buffer(), SCHEMA))
    before.process(batch(*range(20)))
    stored = before.snapshot("chk-1").lists["rows"]
    astray = 0
    for index, share in enumerate((stored[:10], stored[10:])):
        successor = Harness(Process(Buffer(), SCHEMA), lists={"rows": share}, index=index, parallelism=2)
        buffer = batch(*values(successor.out.rows()))
        elsewhere = partition_by_key_group(buffer, ["v"], 16, 2)[1 - index]
        astray += elsewhere.num_rows if elsewhere is not None else 0
    assert astray > 0


# ---------------------------------------------------------------- timers


class Bell(ProcessFunction):
    """Sets a timer for the value of each row; tells when one fires."""

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        context.register_processing_timer(row["v"])

    def on_timer(self, timestamp_ms: int, context: SubtaskContext, out: RowCollector) -> None:
        out.emit({"v": timestamp_ms})


def test_timers_fire_in_order_and_once() -> None:
    """S3-35."""
    harness = Harness(Process(Bell(), SCHEMA))
    harness.process(batch(30, 10, 20, 10))
    fired = []
    for _ in range(4):
        harness.clock.advance(10)
        fired.append(values(harness.tick()))
    assert fired == [[10], [20], [30], []]


def test_timers_are_restored_and_assigned_to_the_subtasks() -> None:
    """S3-35: restored after a crash, at another parallelism too; one that is overdue fires at once."""
    before = Harness(Process(Bell(), SCHEMA))
    before.process(batch(30, 10, 20))
    stored = before.snapshot("chk-1").lists["_processing_timers"]
    assert stored == (10, 20, 30)
    fired = []
    for index, share in enumerate((stored[:2], stored[2:])):
        lists = {"_processing_timers": share}
        successor = Harness(Process(Bell(), SCHEMA), lists=lists, index=index, parallelism=2, clock=ManualClock(20))
        fired.append((values(successor.tick()), successor.operator.next_processing_timer()))
    assert fired == [([10, 20], None), ([], 30)]


def test_a_timer_that_is_set_while_timers_fire_waits_its_turn() -> None:
    """Else one that is set anew for now would never let a row in."""

    class Restless(Bell):
        def on_timer(self, timestamp_ms: int, context: SubtaskContext, out: RowCollector) -> None:
            super().on_timer(timestamp_ms, context, out)
            context.register_processing_timer(context.now_ms())

    harness = Harness(Process(Restless(), SCHEMA), clock=ManualClock(100))
    harness.process(batch(50))
    assert values(harness.tick()) == [50]
    assert values(harness.tick()) == [100]


@pytest.mark.parametrize("when", [1.5, True, "10", None])
def test_a_timer_at_no_whole_number_is_refused(when: Any) -> None:
    class Wrong(Bell):
        def start(self, context: SubtaskContext, out: RowCollector) -> None:
            context.register_processing_timer(when)

    with pytest.raises(TypeError, match=r"an int \(milliseconds\)"):
        Harness(Process(Wrong(), SCHEMA))


def test_a_timer_that_no_snapshot_can_hold_is_refused_where_it_is_set() -> None:
    class Wrong(Bell):
        def start(self, context: SubtaskContext, out: RowCollector) -> None:
            context.register_processing_timer(2**63)

    with pytest.raises(ValueError, match="the timestamp of a timer must fit 64 bits"):
        Harness(Process(Wrong(), SCHEMA))


def test_the_example_says_its_piece_once_a_minute_after_a_restore_too() -> None:
    """The timer of the attempt before is restored, beside the one that it sets at each start."""
    example = str(plain_process.__doc__).split("\n\n    stream.")[0].split("\n\n", 1)[1]
    names: dict[str, Any] = {"ProcessFunction": ProcessFunction}
    exec(dedent(example), names)
    schema = pa.schema([*SCHEMA, ("seen", pa.int64())])
    clock = ManualClock()
    before = Harness(Process(names["Heartbeat"](), schema), clock=clock)
    before.process(batch(1, 2))
    lists = before.snapshot("chk-1").lists
    clock.advance(1_000)
    successor = Harness(Process(names["Heartbeat"](), schema), clock=clock, lists=lists)
    counts = []
    for _ in range(180):
        clock.advance(1_000)
        counts += [row["seen"] for row in successor.tick()]
    assert counts == [2, 2, 2]


# ---------------------------------------------------------------- where output would be lost


@pytest.mark.parametrize("hook", ["snapshot", "checkpoint_completed", "checkpoint_aborted", "close"])
def test_a_kept_collector_refuses_where_output_would_be_lost(hook: str) -> None:
    """S0-42, S3-59, S3-61."""

    class Keeper(ProcessFunction):
        def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
            self._out = out

        def _emit(self, *_: Any) -> None:
            self._out.emit({"v": 1})

    setattr(Keeper, hook, Keeper._emit)
    harness = Harness(Process(Keeper(), SCHEMA))
    harness.process(batch(1))
    act: Any = getattr(harness.operator, hook)
    arguments = {"close": (), "checkpoint_completed": (permit(1),)}.get(hook, (1,))
    with pytest.raises(WeirError, match="emit was called outside a hook"):
        act(*arguments)
    assert harness.out.batches == []


# ---------------------------------------------------------------- broadcast rows


def rule(name: str, limit: int | None) -> pa.RecordBatch:
    return pa.record_batch({"name": [name], "limit": pa.array([limit], pa.int64())})


class Limits(BroadcastProcessFunction):
    """Passes what no limit forbids."""

    def open(self, context: SubtaskContext) -> None:
        self._limits = context.broadcast_map("limits")

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        if row["v"] <= min(self._limits.values(), default=100):
            out.emit(row)

    def process_broadcast(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        if row["limit"] is None:
            self._limits.pop(row["name"], None)
        else:
            self._limits[row["name"]] = row["limit"]


def test_rows_meet_the_rules_that_came_before_them() -> None:
    harness = Harness(Process(Limits(), SCHEMA))
    assert values(harness.process(batch(1, 50))) == [1, 50]
    harness.process(rule("low", 10), input=1)
    assert values(harness.process(batch(1, 50))) == [1]
    harness.process(rule("low", None), input=1)
    assert values(harness.process(batch(1, 50))) == [1, 50]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rules_are_with_every_subtask_after_a_rescale(parallelism: int) -> None:
    """S0-61, S4-49."""
    store = MemorySnapshotStore()
    before = Harness(Process(Limits(), SCHEMA), store=store, index=1, parallelism=2)
    before.process(rule("low", 10), input=1)
    copied = before.snapshot("chk-1")
    for index in range(parallelism):
        successor = Harness(
            Process(Limits(), SCHEMA), store=store, broadcast=copied, index=index, parallelism=parallelism
        )
        assert values(successor.process(batch(1, 50))) == [1]


@pytest.mark.parametrize("write", [lambda rules, v: rules.update(mine=v), lambda rules, v: rules.clear()])
def test_rules_are_not_written_where_subtasks_see_different_rows(write: Any) -> None:
    class Wrong(Limits):
        def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
            write(self._limits, row["v"])

    harness = Harness(Process(Wrong(), SCHEMA))
    with pytest.raises(WeirError, match="written in open and process_broadcast only"):
        harness.process(batch(1))


def test_a_keyed_function_has_rules_beside_its_keyed_state() -> None:
    class Counting(KeyedBroadcastProcessFunction):
        def open(self, context: ProcessContext) -> None:
            self._every = context.broadcast_map("every")
            self._seen = context.value_state("seen")

        def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
            self._seen.update(self._seen.get(0) + 1)
            if self._seen.get() % self._every.get("n", 1) == 0:
                out.emit({"v": row["v"], "text": str(self._seen.get())})

        def process_broadcast(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
            self._every["n"] = row["limit"]
            with pytest.raises(WeirError, match="no current key"):
                self._seen.get()

    store = MemorySnapshotStore()
    before = Harness(KeyedProcess(Counting(), ["v"], SCHEMA), store=store)
    before.process(rule("n", 2), input=1)
    assert [row["text"] for row in before.process(batch(1, 1, 2, 1))] == ["2"]
    snapshot = before.snapshot("chk-1")
    successor = Harness(KeyedProcess(Counting(), ["v"], SCHEMA), store=store, snapshots=[snapshot], broadcast=snapshot)
    assert [(row["v"], row["text"]) for row in successor.process(batch(1, 2))] == [(1, "4"), (2, "2")]


class Returning(ProcessFunction):
    def process(self, row: dict[str, Any], context: Any, out: Any) -> Any:
        return [row]


def test_rows_that_are_returned_are_refused() -> None:
    """They would be lost, as those of a function that yields."""
    with pytest.raises(JobRejected, match=r"returned list.*out\.emit"):
        Harness(Process(Returning(), pa.schema([("x", pa.int64())]))).process(pa.record_batch({"x": [1]}))
