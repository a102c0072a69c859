"""When the stages of a batch run begin and end, as Spark itself recorded it."""

from __future__ import annotations

import json
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.dataflow.builder import Dataflow
from runtime.operators.aggregates import Count
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from spark_jobs.batch.run import run_batch
from tests.spark_jobs.batch.flows import EVENTS, FILES, KEYS, ROWS_PER_FILE, even, events, rows_in
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_stage_begins_before_those_that_it_reads_have_ended(
    cluster: SparkSession, event_log: Path, inputs: Path, tmp_path: Path
) -> None:
    """S0-04: a diamond; submission and completion times are those in Spark's own event log."""
    flow = Dataflow("diamond")
    rows = events(flow, inputs).map_batches("even", even)
    by_key = rows.key_by("key").aggregate("by-key", {"rows": Count()})
    by_value = rows.key_by("value").aggregate("by-value", {"rows": Count()})
    joined = by_key.key_by("rows").aggregate("spread", {"keys": Count()})
    joined.sink("spread-out", ParquetSink(str(tmp_path / "spread")))
    by_value.sink("values-out", ParquetSink(str(tmp_path / "values")))
    before = {stage["Stage ID"] for stage in _completed_stages(event_log)}
    cluster.conf.set("spark.sql.adaptive.enabled", "false")  # else each stage is a job, without parents in the log
    run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    cluster.conf.unset("spark.sql.adaptive.enabled")
    until(lambda: len(_completed_stages(event_log)) > len(before) + 3, 60.0)
    ran = {stage["Stage ID"]: stage for stage in _completed_stages(event_log) if stage["Stage ID"] not in before}
    reads = [(ran[parent], stage) for stage in ran.values() for parent in stage["Parent IDs"] if parent in ran]
    assert len(reads) >= 3
    for producer, consumer in reads:
        assert producer["Completion Time"] <= consumer["Submission Time"]
    assert len(rows_in(tmp_path / "values")) > len(rows_in(tmp_path / "spread")) > 0


class Passes(KeyedProcessFunction):
    """Emits each row as it comes."""

    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        out.emit(row)


def test_all_rows_of_a_key_are_handled_together_and_in_the_order_of_event_time(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """S0-03: a file holds what one task wrote, in its order."""
    flow = Dataflow("traced")
    rows = events(flow, inputs).key_by("key").process("trace", Passes, EVENTS, time="at")
    rows.sink("out", ParquetSink(str(tmp_path / "out")))
    run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    files = [pq.read_table(path).to_pylist() for path in (tmp_path / "out").glob("*.parquet")]
    assert (len(files), sum(map(len, files))) == (2, FILES * ROWS_PER_FILE)
    runs = [key for file in files for key, _ in groupby(file, key=itemgetter("key"))]
    assert len(runs) == len(set(runs)) == KEYS
    for file in files:
        for _, group in groupby(file, key=itemgetter("key")):
            times = [row["at"] for row in group]
            assert times == sorted(times)


def _completed_stages(event_log: Path) -> list[dict[str, Any]]:
    lines = [line for path in event_log.iterdir() for line in path.read_text().splitlines() if line.endswith("}")]
    events = [json.loads(line) for line in lines if '"SparkListenerStageCompleted"' in line]
    return [event["Stage Info"] for event in events]
