"""When the stages of a batch run begin and end, as Spark itself recorded it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.dataflow import Dataflow
from runtime.operators.aggregates import Count
from spark_jobs.batch.run import run_batch
from tests.spark_jobs.batch.flows import even, events, rows_in
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
    run_batch(flow, parallelism=2, spark=cluster, storage=str(tmp_path / "end"))
    until(lambda: len(_completed_stages(event_log)) > len(before) + 3, 60.0)
    ran = {stage["Stage ID"]: stage for stage in _completed_stages(event_log) if stage["Stage ID"] not in before}
    reads = [(ran[parent], stage) for stage in ran.values() for parent in stage["Parent IDs"] if parent in ran]
    assert len(reads) >= 3
    for producer, consumer in reads:
        assert producer["Completion Time"] <= consumer["Submission Time"]
    assert len(rows_in(tmp_path / "values")) > len(rows_in(tmp_path / "spread")) > 0


def _completed_stages(event_log: Path) -> list[dict[str, Any]]:
    lines = [line for path in event_log.iterdir() for line in path.read_text().splitlines() if line.endswith("}")]
    events = [json.loads(line) for line in lines if '"SparkListenerStageCompleted"' in line]
    return [event["Stage Info"] for event in events]
