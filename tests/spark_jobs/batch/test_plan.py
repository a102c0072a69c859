"""What runs where in BATCH, and what is refused, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.formats import CsvFormat
from runtime.connectors.kafka.formats import KafkaText
from runtime.connectors.kafka.sink import KafkaSink
from runtime.connectors.postgres.sink import PostgresSink
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sinks.print import PrintSink
from runtime.connectors.sinks.webhook import Webhook
from runtime.connectors.sinks.write_ahead import WriteAheadSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.settings import ExecutionMode
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.connectors import STAGE_FOLDERS
from runtime.dataflow.stream import Stream
from runtime.errors import JobRejected
from runtime.operators.aggregates import Count
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from runtime.operators.functions.process import ProcessFunction, SubtaskContext
from runtime.ports import StageFolders
from spark_jobs.batch.plan import EmitRows, ReadRows, ReadSource, WriteSink
from spark_jobs.batch.run import plan_batch
from spark_jobs.sources.table import from_spark
from spark_jobs.stages.compile import resolve_mode
from tests.spark_jobs.batch.flows import EVENTS, FAMILY, even, flow_of, write_inputs

ROWS = pa.schema([("key", pa.int64())])


def plan(build: Callable[[Stream], Stream], source: Any = None, parallelism: int = 2) -> list[str]:
    flow = Dataflow("planned")
    build(flow.source("numbers", source or SequenceSource(rows=10))).sink("out", DiscardSink())
    return [stage.name for stage in plan_batch(flow.compile(parallelism)).stages]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_steps_without_an_exchange_share_a_task() -> None:
    assert plan(lambda numbers: numbers.map_batches("a", same).map_batches("b", same)) == ["numbers → a → b → out"]


def test_a_keyed_step_begins_a_stage_behind_its_exchange() -> None:
    """S0-04: every stage stands behind those that it reads."""
    stages = plan(
        lambda numbers: (
            numbers.map_batches("a", same).key_by("key").aggregate("sums", {"n": Count()}).map_batches("b", same)
        )
    )
    assert stages == ["numbers → a", "sums → b → out"]


def test_rows_for_several_readers_are_kept_once() -> None:
    """S0-04: a diamond."""
    flow = Dataflow("diamond")
    numbers = flow.source("numbers", SequenceSource(rows=10)).map_batches("a", same)
    counts = numbers.key_by("key").aggregate("counts", {"n": Count()})
    joined = numbers.map_batches("b", same)
    counts.sink("counted", DiscardSink())
    joined.sink("all", DiscardSink())
    stages = plan_batch(flow.compile(2)).stages
    assert [stage.name for stage in stages if stage.shared] == ["numbers → a"]
    for stage in stages:
        assert isinstance(stage.head, ReadSource) or max(stage.head.stages) < stage.number
    assert sum(isinstance(stage.tail, WriteSink) for stage in stages) == 2


def test_columns_of_a_function_over_batches_are_found_with_real_rows(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    stages = plan_batch(flow_of("join", tmp_path, tmp_path / "out").compile(2)).stages
    (build_stage,) = [stage for stage in stages if stage.broadcast]
    assert isinstance(build_stage.tail, EmitRows)
    assert build_stage.tail.outputs[0][1].schema.names == ["key", "name"]
    assert not (tmp_path / "out").exists()


def test_two_columns_of_one_name_are_refused_by_the_step_that_makes_them() -> None:
    flow = Dataflow("twice")
    numbers = flow.source("numbers", SequenceSource(rows=10)).map_batches("twice", twice)
    numbers.key_by("id").aggregate("n", {"n": Count()}).sink("out", DiscardSink())
    with pytest.raises(JobRejected, match="twice: two columns of its output have the name 'id'"):
        plan_batch(flow.compile(1))


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("id", batch["id"])


def test_columns_of_an_empty_folder_are_found_with_an_empty_batch(tmp_path: Path) -> None:
    source = DirectorySource(str(tmp_path), CsvFormat(EVENTS), bounded=True)
    flow = Dataflow("empty")
    flow.source("none", source).map_batches("even", even).key_by("half").aggregate("n", {"n": Count()}).sink(
        "out", DiscardSink()
    )
    (first, second) = plan_batch(flow.compile(1)).stages
    assert isinstance(first.tail, EmitRows)
    assert first.tail.outputs[0][1].schema == EVENTS.append(pa.field("half", pa.int64()))
    assert isinstance(second.head, ReadRows)
    assert second.head.sort == (("0_3_half",),)


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_of_flows_can_be_planned(name: str, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    assert plan_batch(flow_of(name, tmp_path, tmp_path / "out").compile(3)).stages


# ---------------------------------------------------------------- refusals


class Passes(KeyedProcessFunction):
    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        out.emit(row)


class Expires(Passes):
    def open(self, context: ProcessContext) -> None:
        self._seen = context.value_state("seen", ttl_ms=1_000)


class Waits(Passes):
    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        def later() -> None:
            context.register_processing_timer(0)

        later()


class Clock(ProcessFunction):
    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        out.emit({"key": context.now_ms()})


REFUSED: dict[str, tuple[Callable[[Stream], Stream], str, str]] = {
    "a time to live": (lambda s: s.key_by("key").process("p", Expires, ROWS), "processing-time-in-batch", "ttl_ms"),
    "a timer": (
        lambda s: s.key_by("key").process("p", Waits, ROWS),
        "processing-time-in-batch",
        "register_processing_timer",
    ),
    "the clock": (lambda s: s.process("p", Clock, ROWS), "processing-time-in-batch", "now_ms"),
    "a factory": (lambda s: s.process("p", partial(Clock), ROWS), "processing-time-in-batch", "Clock uses now_ms"),
    "batches by age": (
        lambda s: s.key_by("key").batches("p", same, max_rows=2, max_wait_ms=5),
        "processing-time-in-batch",
        "max_wait_ms",
    ),
    "a type": (
        lambda s: s.map_batches("p", _with_decimal256).key_by("key").aggregate("n", {"n": Count()}),
        "type-in-batch",
        "'big' is decimal256",
    ),
}


def _with_decimal256(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("big", pa.nulls(len(batch), pa.decimal256(60, 0)))


@pytest.mark.parametrize("what", REFUSED)
def test_what_batch_cannot_do_is_refused_by_operator(what: str) -> None:
    """S0-10: an answer that would depend on the clock is not given."""
    build, code, reason = REFUSED[what]
    with pytest.raises(JobRejected, match=reason) as error:
        plan(build)
    assert (error.value.code, error.value.field) == (code, "p")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (SequenceSource(), "unbounded-in-batch"),
        (DirectorySource("/in", CsvFormat(EVENTS)), "unbounded-in-batch"),
        (SequenceSource(duration_ms=1_000), "processing-time-in-batch"),
    ],
)
def test_a_source_without_an_end_of_its_own_is_refused(source: Any, code: str) -> None:
    """S0-05: one error before the start, which names the source; nothing is read."""
    with pytest.raises(JobRejected) as error:
        plan(lambda numbers: numbers.map_batches("a", same), source)
    assert (error.value.code, error.value.field) == (code, "numbers")


def test_iteration_is_refused() -> None:
    flow = Dataflow("loop")
    loop = flow.source("numbers", SequenceSource(rows=10)).iterate("loop")
    passed = loop.map_batches("a", same)
    loop.close_with(passed)
    passed.sink("out", DiscardSink())
    with pytest.raises(JobRejected) as error:
        plan_batch(flow.compile(1))
    assert (error.value.code, error.value.field) == ("iteration-in-batch", "loop")


@pytest.mark.parametrize(
    "sink",
    [
        PostgresSink("postgresql://h/d", "t", key=["key"], commit="immediate"),
        KafkaSink("h:1", "t", KafkaText(), commit="immediate"),
    ],
)
def test_a_sink_that_shows_rows_before_the_end_is_refused(sink: Any) -> None:
    """A failed run shows no output. Lines of a `PrintSink` are none."""
    flow = Dataflow("immediate")
    numbers = flow.source("numbers", SequenceSource(rows=10))
    numbers.sink("lines", PrintSink())
    assert plan_batch(flow.compile(1)).stages
    numbers.sink("out", sink)
    with pytest.raises(JobRejected, match="run this job in STREAMING") as error:
        plan_batch(flow.compile(1))
    assert (error.value.code, error.value.field) == ("immediate-sink-in-batch", "out")


@pytest.mark.parametrize(
    "sink",
    [
        KafkaSink("h:1", "t", KafkaText(), commit="staged"),
        WriteAheadSink(Webhook("https://example.org/orders")),
    ],
)
def test_a_sink_whose_folder_the_console_gives_is_accepted_before_it_has_the_folder(sink: Any) -> None:
    flow = Dataflow("staged")
    at_compile_time = STAGE_FOLDERS.set(StageFolders(""))
    try:
        flow.source("numbers", SequenceSource(rows=10)).sink("out", sink)
    finally:
        STAGE_FOLDERS.reset(at_compile_time)
    assert resolve_mode(flow, ExecutionMode.AUTOMATIC, 1) is ExecutionMode.BATCH


@pytest.mark.parametrize("step", ["window", "session", "deduplicate", "join"])
def test_automatic_does_not_lead_into_a_refusal_of_late_rows_of_a_dataframe(step: str) -> None:
    """BATCH finds them only while it runs."""

    def mode(event_time: str | None) -> ExecutionMode:
        flow = Dataflow("frames")
        columns = pa.schema([("key", pa.int64()), ("at", pa.int64())])
        rows = flow.source("rows", from_spark(lambda spark: spark.range(0), schema=columns, event_time=event_time))
        keyed, minute = rows.key_by("key"), timedelta(minutes=1)
        after = {
            "window": lambda: keyed.window("step", minute, "at", {"n": Count()}),
            "session": lambda: keyed.session_window("step", minute, "at", {"n": Count()}),
            "deduplicate": lambda: keyed.deduplicate("step", within=minute, time="at"),
            "join": lambda: keyed.join(keyed).window("step", minute, time=("at", "at"), suffixes=("", "_2")),
        }[step]()
        after.sink("out", DiscardSink())
        return resolve_mode(flow, ExecutionMode.AUTOMATIC, 2)

    assert mode("at") is ExecutionMode.STREAMING
    assert mode(None) is ExecutionMode.BATCH


def test_sinks_within_the_stream_write_the_rows_that_the_next_steps_read() -> None:
    flow = Dataflow("through")
    numbers = flow.source("numbers", SequenceSource(rows=10))
    after = numbers.write_through("first", DiscardSink()).write_through("second", DiscardSink())
    after.key_by("key").aggregate("counts", {"n": Count()}).sink("out", DiscardSink())
    stages = plan_batch(flow.compile(2)).stages
    assert [(stage.name, stage.inputs, stage.shared) for stage in stages] == [
        ("numbers", (), True),
        ("first", (0,), False),
        ("second", (0,), False),
        ("", (0,), False),
        ("counts → out", (3,), False),
    ]


def test_the_stages_in_front_of_a_union_contain_it_up_to_the_next_exchange() -> None:
    """No stage merges the rows: the exchange reads all of them, and a sink writes those of each."""
    flow = Dataflow("union")
    numbers = flow.source("numbers", SequenceSource(rows=10))
    more = flow.source("more", SequenceSource(rows=10)).union("both", numbers).map_batches("a", same)
    more.key_by("key").aggregate("counts", {"n": Count()}).sink("out", DiscardSink())
    flow.source("third", SequenceSource(rows=10)).union("again", flow.source("fourth", SequenceSource(rows=10))).sink(
        "end", DiscardSink()
    )
    stages = plan_batch(flow.compile(2)).stages
    assert sorted((stage.name, stage.inputs) for stage in stages) == [
        ("counts → out", (0, 1)),
        ("fourth → again → end", ()),
        ("more → both → a", ()),
        ("numbers → both → a", ()),
        ("third → again → end", ()),
    ]
    tails = [stage.tail for stage in stages if isinstance(stage.tail, EmitRows)]
    assert sorted(tail.branch for tail in tails) == [0, 1], "no two rows that the exchange reads have the same place"


def test_a_union_of_other_columns_is_refused_before_anything_starts() -> None:
    """The columns of both are known from their first rows only."""
    flow = Dataflow("union")
    numbers = flow.source("numbers", SequenceSource(rows=10))
    numbers.map_batches("twice", with_copy).union("both", numbers).sink("out", DiscardSink())
    with pytest.raises(JobRejected, match=r"columns of 'numbers' differ from the columns of 'twice'.*'copy'") as error:
        plan_batch(flow.compile(1))
    assert (error.value.code, error.value.field) == ("wrong-columns", "both")


def with_copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("copy", batch["id"])


class Untouched(DiscardSink):
    """Fails if a writer is made: the columns of later steps are found in the driver."""

    def writer(self) -> Any:
        raise AssertionError("only the run itself writes")


def test_a_sink_within_the_stream_writes_no_sample() -> None:
    flow = Dataflow("through")
    numbers = flow.source("numbers", SequenceSource(rows=10))
    numbers.write_through("through", Untouched()).map_batches("same", lambda batch: batch).sink("out", DiscardSink())
    assert plan_batch(flow.compile(1)).stages[-1].name == "same → out"


def test_a_custom_partitioning_does_not_pass_a_sink_within_the_stream() -> None:
    flow = Dataflow("through")
    dealt = flow.source("numbers", SequenceSource(rows=10)).partition_custom(lambda rows, subtasks: [0], "key")
    dealt.write_through("through", DiscardSink()).sink("out", DiscardSink())
    with pytest.raises(JobRejected, match="partition_custom behind it") as error:
        plan_batch(flow.compile(1))
    assert (error.value.code, error.value.field) == ("custom-write-through-in-batch", "through")


def test_a_window_of_rows_is_planned_with_pre_aggregated_rows() -> None:
    flow = Dataflow("windows")
    rows = flow.source("numbers", SequenceSource(rows=10)).key_by("key")
    rows.window("w", timedelta(seconds=1), "time", {"n": Count()}).sink("out", DiscardSink())
    first, _ = plan_batch(flow.compile(2)).stages
    assert isinstance(first.tail, EmitRows)
    assert first.tail.pre_aggregation is not None
    assert first.tail.outputs[0][1].schema.names[0] == "key"
