"""What a task does, without Spark: chunks of whole keys, timers between rows, owners that come from the data."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.connectors.formats.parquet import ParquetFormat
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.ids import OperatorId, Token
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.keyed_stream import KeyedStream
from runtime.dataflow.stream import Stream
from runtime.errors import JobRejected
from runtime.operators.aggregates import Count
from runtime.operators.functions.co_process import KeyedCoProcessFunction
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from runtime.operators.functions.process import ProcessFunction, SubtaskContext
from runtime.operators.output_tag import OutputTag
from runtime.state.index.hashing import hash_columns
from spark_jobs.batch.columns import StepColumns
from spark_jobs.batch.counts import Reports, RowSum, TaskReport
from spark_jobs.batch.execute import check_partitions, repeated_check
from spark_jobs.batch.failures import TaskError
from spark_jobs.batch.late_rows import late_rows_error
from spark_jobs.batch.plan import BatchStage, EmitRows, ReadRows, stages_of
from spark_jobs.batch.run import plan_batch
from spark_jobs.batch.subtask import JobFacts
from spark_jobs.batch.tasks import task_of
from spark_jobs.batch.wire import HASH_COLUMN, ORDER_COLUMN, OWNER_COLUMN, TIME_COLUMN, FrameSchema, WireSchema, row_sum
from spark_jobs.column_types import carrier_of
from spark_jobs.sources.frames import FrameShape
from spark_jobs.sources.table import from_spark
from tests.spark_jobs.batch.flows import every_type

SCHEMA = pa.schema([("key", pa.int64()), ("at", pa.int64())])
SEEN = pa.schema([("key", pa.int64()), ("what", pa.string()), ("at", pa.int64())])
JOB = JobFacts(name="j", max_parallelism=8, token=Token(1))


class Trace(KeyedProcessFunction):
    """Emits every call, in order; a timer 10 ms behind each row, and one more behind each timer at an even time."""

    def open(self, context: ProcessContext) -> None:
        self.rows = context.reducing_state("rows", lambda count, other: count + other)

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        self.rows.add(1)
        out.emit({"key": row["key"], "what": f"row {self.rows.get()}", "at": context.timestamp})
        context.register_event_timer(row["at"] + 10)

    def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
        out.emit({"key": context.current_key, "what": f"timer {self.rows.get()}", "at": context.timestamp})
        if timestamp_ms % 2 == 0:
            context.register_event_timer(timestamp_ms + 1)


def keyed_stage(parallelism: int = 1) -> BatchStage:
    flow = Dataflow("traced", max_parallelism=8)
    rows = flow.source("rows", SequenceSource(rows=1)).map_batches("named", _named)
    traced = rows.key_by("key").process("trace", Trace, SEEN, time="at")
    traced.sink("out", DiscardSink())
    traced.sink("again", DiscardSink())  # so that what it emits leaves the task as rows
    return plan_batch(flow.compile(parallelism)).stages[1]


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch["key"], batch["id"]], schema=SCHEMA)


def dealt(rows: list[tuple[int, int]], frame: FrameSchema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """As Spark brings them: sorted, in batches that cut keys."""
    batch = pa.RecordBatch.from_pylist([{"key": key, "at": at} for key, at in rows], SCHEMA)
    hashes = hash_columns([batch["key"]]).view(np.int64)
    sent = frame.streams[0].encode(batch, 0, hashes, batch["at"].to_numpy(), 0, 0)
    sent = sent.sort_by([(name, "ascending") for name in (OWNER_COLUMN, HASH_COLUMN, TIME_COLUMN, ORDER_COLUMN)])
    for start in range(0, len(rows), batch_rows):
        yield sent.slice(start, batch_rows)


def test_a_task_reports_the_rows_of_each_operator_once_at_its_end() -> None:
    """A keyed operator is made anew for each chunk; its rows are counted together."""
    stage, reports = keyed_stage(), list[TaskReport]()
    frame: FrameSchema = stage.head.frame  # type: ignore[union-attr]
    rows = [(key, at) for key in range(5) for at in range(10)]
    batches = task_of(stage, JOB, {}, 20, reports.append)(dealt(rows, frame, 7))
    written = sum(batch.num_rows for batch in batches)
    (report,) = reports
    assert (report.stage, report.rows_read, report.rows_written) == (1, 50, written)
    assert (report.rows_in, report.rows_out) == ({"trace": 50}, {"trace": written})
    assert (report.read[0].rows, report.written[0].rows, report.partition) == (50, written, 0)


def test_a_task_that_fails_reports_nothing() -> None:
    is_planned: list[bool] = []

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        if is_planned:
            raise ValueError("no such airport")
        return batch

    flow = Dataflow("fails", max_parallelism=8)
    numbers = flow.source("numbers", SequenceSource(rows=1_000)).map_batches("step", step)
    numbers.key_by("key").aggregate("n", {"n": Count()}).sink("out", DiscardSink())
    stage, reports = plan_batch(flow.compile(1)).stages[0], list[TaskReport]()
    is_planned.append(True)
    ids = iter([pa.RecordBatch.from_pydict({"id": [0]})])
    with pytest.raises(TaskError, match="step"):
        list(task_of(stage, JOB, {}, report=reports.append)(ids))
    assert reports == []


def test_a_sink_takes_files_that_differ_in_nullability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in STREAMING: all columns may hold nulls."""
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number, nullable in enumerate((False, True)):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=nullable)])
        pq.write_table(pa.table({"id": [number]}, schema=schema), folder / f"{number}.parquet")
    flow = Dataflow("copy")
    source = DirectorySource(str(folder), ParquetFormat(), bounded=True)
    flow.source("in", source).sink("out", ParquetSink(str(output)))
    (stage,) = plan_batch(flow.compile(1)).stages
    monkeypatch.setattr("spark_jobs.batch.tails.current_task", lambda: SimpleNamespace(taskAttemptId=lambda: 7))
    list(task_of(stage, JOB, {})(iter([pa.RecordBatch.from_pydict({"id": [0]})])))
    (path,) = output.glob(".*.pending")
    table = pq.ParquetFile(path).read()
    assert sorted(table["id"].to_pylist()) == [0, 1]
    assert table.schema.field("id").nullable


def traced(rows: list[tuple[int, int]], batch_rows: int, chunk_rows: int) -> list[dict[str, Any]]:
    stage = keyed_stage()
    assert isinstance(stage.tail, EmitRows)
    assert not isinstance(stage.head, str)
    run = task_of(stage, JOB, {}, chunk_rows)
    frame: FrameSchema = stage.head.frame  # type: ignore[union-attr]
    out = [rows for batch in run(dealt(rows, frame, batch_rows)) for rows in stage.tail.frame.decode(batch)]
    return [row for some in out for row in some.batch.to_pylist()]


def oracle(rows: list[tuple[int, int]]) -> dict[int, list[tuple[str, int]]]:
    """By key: a timer fires before the first row that is later than it."""
    calls_by_key: dict[int, list[tuple[str, int]]] = {}
    for key in {key for key, _ in rows}:
        timers: list[int] = []
        calls = calls_by_key.setdefault(key, [])
        count = 0

        def fire(until: float, timers: list[int] = timers, calls: list[tuple[str, int]] = calls) -> None:
            while timers and min(timers) < until:
                timer = min(timers)
                timers.remove(timer)
                calls.append((f"timer {count}", timer))  # noqa: B023  # called while the loop stands here
                if timer % 2 == 0 and timer + 1 not in timers:
                    timers.append(timer + 1)

        for at in sorted(at for row_key, at in rows if row_key == key):
            fire(at)
            count += 1
            calls.append((f"row {count}", at))
            if at + 10 not in timers:
                timers.append(at + 10)
        fire(float("inf"))
    return calls_by_key


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 60)), min_size=1, max_size=40),
    batch_rows=st.integers(1, 12),
    chunk_rows=st.integers(1, 20),
)
def test_keys_are_whole_and_timers_fire_before_the_rows_behind_them(
    rows: list[tuple[int, int]], batch_rows: int, chunk_rows: int
) -> None:
    """S0-03: each key is one contiguous run, however batches and chunks cut the input; its state is never shared."""
    output = traced(rows, batch_rows, chunk_rows)
    runs = [key for key, _ in groupby(output, key=lambda row: row["key"])]
    assert len(runs) == len(set(runs))
    assert {key: [(row["what"], row["at"]) for row in output if row["key"] == key] for key in runs} == oracle(rows)


class TraceBoth(KeyedCoProcessFunction):
    """As `Trace`, for two streams: rows are counted by stream."""

    def open(self, context: ProcessContext) -> None:
        self._counts = context.map_state("counts")

    def process1(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        self._trace("first", row["key"], context, out)

    def process2(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        self._trace("second", row["name"], context, out)

    def _trace(self, what: str, key: int, context: ProcessContext, out: RowCollector) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1
        out.emit({"key": key, "what": f"{what} {self._counts[what]}", "at": context.timestamp})
        assert context.timestamp is not None
        context.register_event_timer(context.timestamp + 10)

    def on_timer(self, timestamp_ms: int, context: ProcessContext, out: RowCollector) -> None:
        counts = f"timer {self._counts.get('first', 0)} {self._counts.get('second', 0)}"
        out.emit({"key": context.current_key, "what": counts, "at": timestamp_ms})


NAMED = pa.schema([("then", pa.int32()), ("name", pa.int32())])
Pairs = list[tuple[int, int]]


def stage_of_two() -> BatchStage:
    flow = Dataflow("traced", max_parallelism=8)
    numbers = flow.source("rows", SequenceSource(rows=1))
    rows = numbers.map_batches("named", _named)
    named = numbers.map_batches("renamed", lambda batch: pa.RecordBatch.from_pylist([], NAMED))
    both = rows.key_by("key").connect(named.key_by("name"))
    traced = both.process("trace", TraceBoth, SEEN, time=("at", "then"))
    traced.sink("out", DiscardSink())
    traced.sink("again", DiscardSink())
    return next(stage for stage in plan_batch(flow.compile(1)).stages if "trace" in stage.operators)


STAGE_OF_TWO = stage_of_two()


def oracle_of_two(first: Pairs, second: Pairs) -> dict[int, list[tuple[str, int]]]:
    """By key: rows by time, those of the first stream before those of the second; timers before later rows."""
    calls_by_key: dict[int, list[tuple[str, int]]] = {}
    for key in {key for key, _ in first + second}:
        rows = [(at, number) for number, pairs in enumerate((first, second)) for row_key, at in pairs if row_key == key]
        timers, counts = {at + 10 for at, _ in rows}, [0, 0]
        calls = calls_by_key.setdefault(key, [])
        fired: set[int] = set()
        for at, number in [*sorted(rows), (1 << 60, -1)]:
            due = {time for time in timers if time < at} - fired
            calls += [(f"timer {counts[0]} {counts[1]}", time) for time in sorted(due)]
            fired |= due
            if number >= 0:
                counts[number] += 1
                calls.append((f"{('first', 'second')[number]} {counts[number]}", at))
    return calls_by_key


@settings(deadline=None)
@given(
    first=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 60)), max_size=30),
    second=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 60)), max_size=30),
    batch_rows=st.integers(1, 12),
    chunk_rows=st.integers(1, 20),
)
def test_rows_of_two_streams_have_one_order_by_key_and_time(
    first: Pairs, second: Pairs, batch_rows: int, chunk_rows: int
) -> None:
    """S0-03: keys of other names and types meet, however batches and chunks cut the input."""
    head, tail = STAGE_OF_TWO.head, STAGE_OF_TWO.tail
    assert isinstance(head, ReadRows)
    assert isinstance(tail, EmitRows)
    batches = (
        pa.RecordBatch.from_pylist([{"key": key, "at": at} for key, at in first], SCHEMA),
        pa.RecordBatch.from_pylist([{"name": key, "then": at} for key, at in second], NAMED),
    )
    encoded = []
    for stream, batch, key, time in zip(head.streams, batches, ("key", "name"), ("at", "then"), strict=True):
        hashes = hash_columns([batch[key]]).view(np.int64)
        encoded.append(head.frame.with_all_columns(stream.encode(batch, 0, hashes, batch[time].to_numpy(), 0, 0)))
    order = [(name, "ascending") for name in (OWNER_COLUMN, HASH_COLUMN, TIME_COLUMN, ORDER_COLUMN)]
    sent = pa.concat_batches(encoded).sort_by(order)
    parts = [sent.slice(start, batch_rows) for start in range(0, len(sent), batch_rows)]
    reports: list[TaskReport] = []
    emitted = task_of(STAGE_OF_TWO, JOB, {}, chunk_rows, reports.append)(iter(parts))
    output = [row for batch in emitted for rows in tail.frame.decode(batch) for row in rows.batch.to_pylist()]
    runs = [key for key, _ in groupby(output, key=lambda row: row["key"])]
    assert len(runs) == len(set(runs))
    expected = oracle_of_two(first, second)
    assert {key: [(row["what"], row["at"]) for row in output if row["key"] == key] for key in runs} == expected
    assert [total.rows for _, total in sorted(reports[0].read.items())] == ([len(first), len(second)] if parts else [])


def test_each_chunk_has_a_fresh_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """S0-03: memory is bounded by a chunk, or by the largest key."""
    opened: list[int] = []
    before = Trace.open

    def open_and_count(self: Trace, context: ProcessContext) -> None:
        opened.append(1)
        before(self, context)

    monkeypatch.setattr(Trace, "open", open_and_count)
    rows = [(key, at) for key in range(5) for at in range(10)]
    traced(rows, batch_rows=7, chunk_rows=20)
    assert len(opened) == 3
    opened.clear()
    traced([(1, at) for at in range(50)], batch_rows=7, chunk_rows=20)
    assert len(opened) == 1


def test_the_owner_of_rows_comes_from_the_data() -> None:
    """Two owners in one task, as after partitions were combined: each has its own subtask."""
    wire = WireSchema("rows", SCHEMA)
    batch = pa.RecordBatch.from_pylist([{"key": 1, "at": 1}], SCHEMA)
    wire_batch = pa.concat_batches([wire.encode(batch, owner, 0, 0, 5, 0) for owner in (0, 2)])
    chunks = list(FrameSchema((wire,)).decode(wire_batch))
    assert [rows.owner for rows in chunks] == [0, 2]


def test_a_lost_and_a_doubled_row_change_the_sum_behind_an_exchange_without_keys() -> None:
    """A repeated task may emit its rows in another order: each owner then has as many rows as before."""
    wire = WireSchema("rows", SCHEMA)
    first, second = (pa.RecordBatch.from_pylist([{"key": key, "at": 1}], SCHEMA) for key in (1, 2))
    written, read = (
        [wire.encode(batch, owner, 0, 0, 0, owner) for owner, batch in enumerate(batches)]
        for batches in ((first, second), (first, first))
    )
    sums = [
        sum((row_sum(rows, rows.columns[-len(wire.carriers) :]) for rows in sent), RowSum()) for sent in (written, read)
    ]
    assert sums[0] != sums[1]
    assert sums[0].rows == sums[1].rows


def test_rows_of_the_branches_of_a_union_have_different_places() -> None:
    """Rows of one place have an order of Spark's, which a repeated task may not keep."""
    wire = WireSchema("rows", SCHEMA)
    batch = pa.RecordBatch.from_pylist([{"key": 1, "at": 1}], SCHEMA)
    places = [wire.encode(batch, 0, 0, 0, index, 0, branch)["order"][0] for branch in (0, 63) for index in (0, 9)]
    assert len(set(places)) == len(places)


def test_every_type_has_a_carrier_and_comes_back() -> None:
    table = every_type()
    wire = WireSchema("rows", table.schema)
    (batch,) = table.combine_chunks().to_batches()
    sent = wire.encode(batch, 0, 0, 0, 0, 0)
    (rows,) = FrameSchema((wire,)).decode(sent)
    assert rows.batch.schema.equals(table.schema)
    assert repr(rows.batch.to_pylist()) == repr(batch.to_pylist())
    frame = FrameSchema((wire,))
    assert len({name.casefold() for name in frame.arrow_schema.names}) == len(frame.arrow_schema)
    assert frame.spark_schema().names == frame.arrow_schema.names


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(60, 0),
        pa.decimal128(5, -2),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.list_(pa.month_day_nano_interval()),
        pa.struct([("a", pa.int8()), ("A", pa.int8())]),
        pa.uuid(),
    ],
)
def test_a_type_that_spark_cannot_hold_is_refused_by_name(kind: pa.DataType) -> None:
    assert carrier_of(kind) is None
    with pytest.raises(JobRejected) as error:
        WireSchema("step", pa.schema([("fine", pa.int8()), ("odd", kind)]))
    assert (error.value.code, error.value.field) == ("type-in-batch", "step")
    assert f"'odd' is {kind}" in error.value.detail


@pytest.mark.parametrize(("names", "code"), [((), "no-columns"), (("a", "a"), "duplicate-column")])
def test_rows_without_columns_or_with_two_of_one_name_are_refused(names: tuple[str, ...], code: str) -> None:
    with pytest.raises(JobRejected) as error:
        WireSchema("step", pa.schema([(name, pa.int8()) for name in names]))
    assert (error.value.code, error.value.field) == (code, "step")


TEN_S = timedelta(seconds=10)
JOINING: dict[str, Callable[[KeyedStream], Stream]] = {
    "interval join": lambda rows: rows.interval_join(rows).between(
        "w", TEN_S, TEN_S, time=("time", "time"), suffixes=("", "_2")
    ),
    "window join": lambda rows: rows.join(rows).window("w", TEN_S, time=("time", "time"), suffixes=("", "_2")),
}
DROPPING: dict[str, Callable[[KeyedStream], Stream]] = {
    "window": lambda rows: rows.window("w", TEN_S, "time", {"n": Count()}),
    "session": lambda rows: rows.session_window("w", TEN_S, "time", {"n": Count()}),
    "deduplicate": lambda rows: rows.deduplicate("w", TEN_S, "time"),
}


KEY_AND_TIME = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us"))])
LATE = OutputTag("late", KEY_AND_TIME)


class Forward(ProcessFunction):
    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        out.emit(row)


def late_rows() -> Stream:
    """Rows an hour behind the watermark of their source."""
    source = SequenceSource(rows=100_000, microseconds_per_row=1_000)
    return Dataflow("late", max_parallelism=8).source("numbers", source).map_batches("earlier", _an_hour_earlier)


TO_LATE: dict[str, Callable[[KeyedStream], Stream]] = {
    "window with late_to": lambda rows: rows.window("w", TEN_S, "time", {"n": Count()}, late_to=LATE),
    "session with late_to": lambda rows: rows.session_window("w", TEN_S, "time", {"n": Count()}, late_to=LATE),
    "deduplicate with late_to": lambda rows: rows.deduplicate("w", TEN_S, "time", late_to=LATE),
}


@pytest.mark.parametrize("step", DROPPING | TO_LATE)
def test_rows_that_streaming_would_drop_are_refused(step: str) -> None:
    """Lateness that changes the answer: the step and the remedy are named."""
    rows = late_rows()
    (DROPPING | TO_LATE)[step](rows.key_by("key")).sink("out", DiscardSink())
    stage = plan_batch(rows.flow.compile(1)).stages[0]
    ids = iter([pa.RecordBatch.from_pydict({"id": [0]})])
    with pytest.raises(TaskError, match=r"late-rows-in-batch.*w.*max_disorder_ms"):
        list(task_of(stage, JOB, {})(ids))


@pytest.mark.parametrize("step", ["window", *JOINING])
def test_late_rows_are_refused_behind_a_step_with_several_readers(step: str) -> None:
    """Its rows are stored for both readers, with the watermarks of their source."""
    rows = late_rows()
    rows.sink("copy", DiscardSink())
    (DROPPING | JOINING)[step](rows.key_by("key")).sink("out", DiscardSink())
    stages = plan_batch(rows.flow.compile(1)).stages
    read = list(task_of(stages[0], JOB, {})(iter([pa.RecordBatch.from_pydict({"id": [0]})])))
    behind = next(stage for stage in stages if isinstance(stage.tail, EmitRows) and stage.tail.target == "w")
    assert behind.inputs == (0,)
    with pytest.raises(TaskError, match=r"late-rows-in-batch.*w.*max_disorder_ms"):
        list(task_of(behind, JOB, {})(iter(read)))


def by_batches(rows: Stream) -> Stream:
    return rows.key_by("key").batches("between", lambda batch: batch, max_rows=1_000)


def by_function(rows: Stream) -> Stream:
    return rows.process("between", Forward, KEY_AND_TIME)


def by_function_of_shared_rows(rows: Stream) -> Stream:
    rows.sink("copy", DiscardSink())
    return by_function(rows)


@pytest.mark.parametrize(
    ("between", "is_kept"), [(by_function, False), (by_function_of_shared_rows, True), (by_batches, True)]
)
def test_late_rows_are_kept_behind_steps_that_no_watermark_passes(
    between: Callable[[Stream], Stream], is_kept: bool
) -> None:
    """As docs/batch.md states: watermarks end at an exchange between subtasks."""
    rows = between(late_rows())
    DROPPING["window"](rows.key_by("key")).sink("out", DiscardSink())
    read = [pa.RecordBatch.from_pydict({"id": [0]})]
    with nullcontext() if is_kept else pytest.raises(TaskError, match=r"late-rows-in-batch.*w"):
        for stage in plan_batch(rows.flow.compile(1)).stages:
            if isinstance(stage.tail, EmitRows):
                emitted = pa.Table.from_batches(task_of(stage, JOB, {})(iter(read)))
                order = [(name, "ascending") for name in (OWNER_COLUMN, HASH_COLUMN, ORDER_COLUMN)]
                read = emitted.sort_by(order).to_batches()
        assert sum(batch.num_rows for batch in read)


def test_a_refusal_of_late_rows_cancels_the_stages_that_still_run() -> None:
    reported, cancelled = threading.Event(), threading.Event()

    def check() -> None:
        if reported.is_set():
            raise late_rows_error("w", "of an earlier partition")

    def run() -> None:
        with repeated_check(check, cancelled.set):
            reported.set()
            assert cancelled.wait(60)
            raise RuntimeError("Job 7 cancelled")  # as Spark ends an action

    with pytest.raises(JobRejected, match="of an earlier partition"):
        run()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("second", "is_refused"), [([10], False), ([9], True), ([], False)])
def test_partitions_of_a_dataframe_that_streaming_reads_one_after_another_are_compared(
    shared: bool, second: list[int], is_refused: bool
) -> None:
    """A table whose partitions span the same hours: a subtask that reads both drops rows of the second."""
    flow = Dataflow("frames", max_parallelism=8)
    rows = flow.source("rows", from_spark(lambda spark: spark.range(0), schema=SCHEMA, event_time="at"))
    rows.key_by("key").window("w", timedelta(milliseconds=10), "at", {"n": Count()}).sink("out", DiscardSink())
    if shared:
        rows.sink("copy", DiscardSink())
    job = flow.compile(2)
    stages = stages_of(job, StepColumns(job, {}), {OperatorId("rows"): FrameShape(SCHEMA, SCHEMA)})
    reports: Reports = {}
    for partition, times in enumerate(([0, 15], [], second)):
        arrays = [pa.array(column, pa.int64()) for column in ([1] * len(times), times, [partition] * len(times))]
        batches = [pa.RecordBatch.from_arrays(arrays, names=["c0", "c1", "partition"])]
        for stage in stages[: 2 if shared else 1]:
            sent: list[TaskReport] = []
            batches = list(task_of(stage, JOB, {}, report=sent.append)(iter(batches)))
            assert sent[0].partition == (partition if times else None)
            reports[stage.number, partition] = sent[0]
    if is_refused:
        with pytest.raises(JobRejected, match=r"w: partition 2 of the DataFrame .* order the DataFrame") as late:
            check_partitions(stages, reports)
        assert late.value.code == "late-rows-in-batch"
    else:
        check_partitions(stages, reports)


def _an_hour_earlier(batch: pa.RecordBatch) -> pa.RecordBatch:
    times = pa.array(batch["time"].cast(pa.int64()).to_numpy() - 3_600_000_000).cast(pa.timestamp("us"))
    return pa.RecordBatch.from_arrays([batch["key"], times], names=["key", "time"])


class Service:
    """Answers requests after pauses of different lengths; the longest pauses are those of the first requests."""

    def __init__(self) -> None:
        self.requests, self.open_requests, self.most_open = 0, 0, 0

    async def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.requests += 1
        self.open_requests += 1
        self.most_open = max(self.most_open, self.open_requests)
        await asyncio.sleep(0.02 if row["id"] % 4 == 0 else 0.0)
        self.open_requests -= 1
        return [{"key": row["id"]}]


def test_requests_are_bounded_and_their_results_keep_the_order_of_the_rows() -> None:
    """A task that runs again emits its rows in the same order. The driver makes no requests."""
    service = Service()
    flow = Dataflow("requests", max_parallelism=8)
    numbers = flow.source("numbers", SequenceSource(rows=300))
    answers = numbers.async_map("ask", service, pa.schema([("key", pa.int64())]), capacity=7, ordered=False)
    rows = answers.map_batches("same", lambda batch: batch)
    rows.sink("out", DiscardSink())
    rows.sink("again", DiscardSink())
    stage = plan_batch(flow.compile(1)).stages[0]
    assert (stage.name, service.requests) == ("numbers → ask → same", 0)
    assert isinstance(stage.tail, EmitRows)
    emitted = task_of(stage, JOB, {})(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    keys = [
        key for batch in emitted for rows in stage.tail.frame.decode(batch) for key in rows.batch["key"].to_pylist()
    ]
    assert keys == list(range(300))
    assert (service.requests, service.most_open, service.open_requests) == (300, 7, 0)


def test_a_request_that_times_out_fails_the_task_and_names_the_operator() -> None:
    async def never(row: dict[str, Any]) -> list[dict[str, Any]]:
        await asyncio.sleep(60)
        return []

    flow = Dataflow("requests", max_parallelism=8)
    answers = flow.source("numbers", SequenceSource(rows=3)).async_map("ask", never, SCHEMA, timeout_ms=50)
    answers.sink("out", DiscardSink())
    answers.sink("again", DiscardSink())
    stage = plan_batch(flow.compile(1)).stages[0]
    with pytest.raises(TaskError, match=r"ask.*timed out after 50 ms"):
        list(task_of(stage, JOB, {})(iter([pa.RecordBatch.from_pydict({"id": [0]})])))


def test_a_source_is_read_by_the_subtask_that_the_range_row_names() -> None:
    flow = Dataflow("numbers", max_parallelism=8)
    numbers = flow.source("numbers", SequenceSource(rows=1_000))
    numbers.sink("out", DiscardSink())
    numbers.sink("again", DiscardSink())
    stage = plan_batch(flow.compile(3)).stages[0]
    assert isinstance(stage.tail, EmitRows)
    counts: Counter[int] = Counter()
    reports: list[TaskReport] = []
    for index in range(3):
        ids = iter([pa.RecordBatch.from_pydict({"id": [index]})])
        for batch in task_of(stage, JOB, {}, report=reports.append)(ids):
            for rows in stage.tail.frame.decode(batch):
                assert rows.owner == index
                counts.update(rows.batch["id"].to_pylist())
    assert counts == Counter(range(1_000))
    assert sum(report.rows_out.get("numbers", 0) for report in reports) == 1_000
    assert sum(report.rows_read for report in reports) == sum(report.rows_written for report in reports) == 1_000
