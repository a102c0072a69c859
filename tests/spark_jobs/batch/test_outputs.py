"""Side outputs in both modes, on a Spark with two executors: of functions, and of windows for late rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from runtime.dataflow.keyed_stream import KeyedStream
from runtime.launch.local import run_local
from spark_jobs.batch.run import run_batch
from tests.contracts.files import Reading
from tests.spark_jobs.batch.flows import (
    ALL,
    EVENTS,
    FILES,
    MINUTE,
    NAMES,
    NUMBERED,
    ROWS_PER_FILE,
    even,
    events,
    rows_in,
    schema_in,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ODD = weir.OutputTag("odd", NUMBERED)
LARGE = weir.OutputTag("large", pa.schema([("key", pa.string()), ("word", pa.dictionary(pa.int8(), pa.string()))]))
UNREAD = weir.OutputTag("unread", pa.schema([("value", pa.int64())]))
SHORT = weir.OutputTag("short", NAMES)
LATE = weir.OutputTag("late", EVENTS)
TEN_S = timedelta(seconds=10)


class Split(weir.ProcessFunction):
    """Even values; odd values, and the keys of large values, as side outputs."""

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        out.emit_to(UNREAD, {"value": row["value"]})
        if row["value"] > 900:
            out.emit_to(LARGE, {"key": row["key"], "word": f"w{row['value'] % 5}"})
        if row["value"] % 2:
            out.emit_to(ODD, row)
        else:
            out.emit(row)


class Ends(weir.KeyedProcessFunction):
    """Each row; the number of rows of a key as a side output, by a timer."""

    def open(self, context: weir.ProcessContext) -> None:
        self._rows = context.reducing_state("rows", lambda count, other: count + other)

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._rows.add(1)
        context.register_event_timer(1 << 60)
        out.emit(row)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        out.emit_to(ODD, {"key": context.current_key, "value": self._rows.get()})


def all_outputs(stream: weir.Stream, output: Path) -> None:
    """Each output has readers of its own: sinks, a sink within the stream, steps with and without keys."""
    split = stream.process("split", Split, NUMBERED, side_outputs=[ODD, LARGE, UNREAD])
    split.map_batches("halves", even).sink("even", weir.ParquetSink(str(output / "even")))
    odd = split.side_output(ODD)
    odd.sink("odd", weir.ParquetSink(str(output / "odd")))
    odd.key_by("key").window("minutes", MINUTE, "at", ALL).sink("sums", weir.ParquetSink(str(output / "minutes")))
    large = split.side_output(LARGE).write_through("large", weir.ParquetSink(str(output / "large")))
    large.key_by("word").batches("words", _same, max_rows=7).sink("out", weir.ParquetSink(str(output / "words")))


def side_output_alone(stream: weir.Stream, output: Path) -> None:
    """No step reads the main output."""
    ends = stream.key_by("key").process("ends", Ends, NUMBERED, time="at", side_outputs=[ODD])
    ends.side_output(ODD).sink("out", weir.ParquetSink(str(output / "odd")))


class Short(weir.ProcessFunction):
    """Names; short names as a side output."""

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        out.emit(row)
        if len(row["name"]) == 2:
            out.emit_to(SHORT, row)


def side_output_as_build_side(stream: weir.Stream, output: Path) -> None:
    """Each subtask gets the rows of a side output; the main output is read too."""
    names = stream.flow.source("names", weir.ParquetSource(str(output.parent / "inputs" / "names")))
    split = names.process("short", Short, NAMES, side_outputs=[SHORT])
    split.sink("names_out", weir.ParquetSink(str(output / "names")))
    joined = stream.join_broadcast("joined", split.side_output(SHORT), on=["key"], take=["name"])
    joined.sink("out", weir.ParquetSink(str(output / "joined")))


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


FLOWS: Mapping[str, Callable[[weir.Stream, Path], None]] = {
    "all outputs": all_outputs,
    "side output alone": side_output_alone,
    "side output as build side": side_output_as_build_side,
}


FOLDERS = {
    "all outputs": ["even", "large", "minutes", "odd", "words"],
    "side output alone": ["odd"],
    "side output as build side": ["joined", "names"],
}


def compare(build: Callable[[weir.Stream, Path], None], cluster: SparkSession, inputs: Path, root: Path) -> list[str]:
    """Runs a flow in both modes and compares each folder. Returns the folders with rows."""
    (root / "inputs").symlink_to(inputs)
    for mode in ("streaming", "batch"):
        flow = weir.Dataflow("outputs")
        build(events(flow, inputs), root / mode)
        if mode == "streaming":
            run_local(flow, parallelism=2, storage=str(root / "s"))
        else:
            run_batch(flow, parallelism=2, spark=cluster, storage=str(root / "b"))
    folders = sorted(path.name for path in (root / "streaming").iterdir() if rows_in(path))
    assert folders == sorted(path.name for path in (root / "batch").iterdir() if rows_in(path))
    for name in folders:
        assert rows_in(root / "batch" / name) == rows_in(root / "streaming" / name)
        assert schema_in(root / "batch" / name).equals(schema_in(root / "streaming" / name))
    return folders


@pytest.mark.parametrize("name", FLOWS)
def test_both_modes_commit_the_same_rows_of_each_output(
    name: str, cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """S0-10."""
    folders = compare(FLOWS[name], cluster, inputs, tmp_path)
    assert folders == FOLDERS[name]


def priced(row: dict[str, Any]) -> dict[str, Any]:
    if row["value"] % 7 == 0:
        raise KeyError(row["value"])
    return row


def test_both_modes_set_the_same_rows_aside(cluster: SparkSession, inputs: Path, tmp_path: Path) -> None:
    """By a function, by an expression, and by a batch function whose columns are known from its rows only."""

    def build(stream: weir.Stream, output: Path) -> None:
        policy = weir.SetAside(str(output / "letters"), max_per_minute=100_000)
        rows = stream.map("priced", priced, EVENTS, on_error=policy)
        divisor = (pc.field("value") - 8) * (pc.field("value") - 9) * (pc.field("value") - 10)
        rows = rows.filter("divided", pc.scalar(100) / divisor > -1_000, on_error=policy)
        rows = rows.map_batches("small", _small_values, on_error=policy, repeatable=True)
        rows.sink("out", weir.ParquetSink(str(output / "results")))

    letters = {}
    for mode in ("streaming", "batch"):
        flow = weir.Dataflow("aside")
        build(events(flow, inputs), tmp_path / mode)
        if mode == "streaming":
            run_local(flow, parallelism=2, storage=str(tmp_path / "s"))
        else:
            run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "b"))
        rows = Reading(weir.dead_letters(str(tmp_path / mode / "letters"))).rows()
        letters[mode] = sorted((letter["operator"], letter["error"], letter["row"]) for letter in rows)
    assert letters["batch"] == letters["streaming"]
    assert {operator for operator, _, _ in letters["batch"]} == {"priced", "divided", "small"}
    results = rows_in(tmp_path / "batch" / "results")
    assert results == rows_in(tmp_path / "streaming" / "results")
    assert len(letters["batch"]) + len(results) == FILES * ROWS_PER_FILE


def _small_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.max(batch["value"]).as_py() > 950:
        raise ValueError("too large")
    return batch


STEPS_WITH_LATE_ROWS: Mapping[str, Callable[[KeyedStream, weir.OutputTag], weir.Stream]] = {
    "tumbling": lambda rows, late: rows.window("step", MINUTE, "at", ALL, late_to=late),
    "sliding": lambda rows, late: rows.window("step", MINUTE, "at", ALL, slide=TEN_S, late_to=late),
    "session": lambda rows, late: rows.session_window("step", timedelta(seconds=3), "at", ALL, late_to=late),
    "deduplicate": lambda rows, late: rows.deduplicate("step", TEN_S, "at", late_to=late),
}


@pytest.mark.parametrize("name", STEPS_WITH_LATE_ROWS)
def test_a_step_with_an_output_for_late_rows_has_the_same_results_in_both_modes(
    name: str, cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """No row is late by the disorder that the source states, so the output for late rows is empty in both modes."""

    def build(stream: weir.Stream, output: Path) -> None:
        positive = stream.filter("positive", pc.field("value") > 0)
        step = STEPS_WITH_LATE_ROWS[name](positive.key_by("key"), LATE)
        step.side_output(LATE).sink("late_out", weir.ParquetSink(str(output / "late")))
        if name == "deduplicate":  # which of the rows of a key passes is not determined
            step = step.select("keys", "key")
        step.sink("out", weir.ParquetSink(str(output / "results")))

    assert compare(build, cluster, inputs, tmp_path) == ["results"]
