"""The same program and the same bounded input: STREAMING on threads, BATCH on a Spark with two executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from runtime.connectors.formats import JsonLinesFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.ids import OperatorId
from runtime.dataflow.builder import Dataflow
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count, Sum
from spark_jobs.batch.run import run_batch
from tests.spark_jobs.batch.flows import (
    FAMILY,
    events,
    every_type,
    flow_of,
    last_in,
    rows_in,
    schema_in,
    table_in,
    through_a_shuffle,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: What the output of STREAMING comes to, where it is a series of results and BATCH gives the last ones.
FOLDED: Mapping[str, Callable[[Path], list[str]]] = {
    "sums": lambda folder: last_in(folder, ["key"]),
    "changelog": table_in,
    "changelog of a changelog": table_in,
}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", FAMILY)
def test_both_modes_commit_the_same_rows(
    name: str, parallelism: int, cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """S0-01, S0-06, S0-07, S0-10: one program, one API, one answer; a changelog folds to what BATCH gives."""
    streaming, batch = tmp_path / "streaming", tmp_path / "batch"
    run_local(flow_of(name, inputs, streaming), parallelism=parallelism, storage=str(tmp_path / "s"))
    result = run_batch(
        flow_of(name, inputs, batch), parallelism=parallelism, spark=cluster, storage=str(tmp_path / "b")
    )
    expected = FOLDED.get(name, rows_in)(streaming)
    assert expected
    assert (table_in(batch) if "changelog" in name else rows_in(batch)) == expected
    assert result.rows == {"out": len(expected)}
    assert schema_in(batch).equals(schema_in(streaming))


def test_both_modes_read_the_same_splits_and_partitions(cluster: SparkSession, tmp_path: Path) -> None:
    """S0-06: the driver lists the folder, so a repeated task reads the same files."""
    for k in (1, 2, 3):
        (tmp_path / "in" / f"k={k}").mkdir(parents=True)
        (tmp_path / "in" / f"k={k}" / "a").write_text("".join(f'{{"id": {k * 1_000 + row}}}\n' for row in range(500)))
    source = DirectorySource(
        str(tmp_path / "in"),
        JsonLinesFormat(pa.schema([("id", pa.int64())])),
        bounded=True,
        filter=(pc.field("k") != 2) & (pc.field("id") != 1_007),
        partition_by=("k",),
        split_bytes=700,
    )

    def flow_into(folder: str) -> Dataflow:
        flow = Dataflow("splits")
        flow.source("in", source).sink("out", ParquetSink(str(tmp_path / folder)))
        return flow

    run_local(flow_into("streaming"), parallelism=3, storage=str(tmp_path / "s"))
    run_batch(flow_into("batch"), parallelism=3, spark=cluster, storage=str(tmp_path / "b"))
    expected = [(k * 1_000 + row, k) for k in (1, 3) for row in range(500) if (k, row) != (1, 7)]
    for folder in ("streaming", "batch"):
        rows = pq.read_table(tmp_path / folder).to_pylist()
        assert sorted((row["id"], row["k"]) for row in rows) == expected


def through(inputs: Path, output: Path) -> Dataflow:
    """Two sinks within the stream, and a sink at its end."""
    flow = Dataflow("through")
    rows = events(flow, inputs).write_through("all", ParquetSink(str(output / "all")))
    positive = rows.filter("positive", pc.field("value") > 0).write_through("some", ParquetSink(str(output / "some")))
    positive.key_by("key").aggregate("sums", {"rows": Count(), "sum": Sum("value")}).sink(
        "out", ParquetSink(str(output / "sums"))
    )
    return flow


def test_sinks_within_the_stream_commit_the_same_rows_in_both_modes(
    cluster: SparkSession, inputs: Path, tmp_path: Path
) -> None:
    """S0-10: in BATCH all sinks commit together at the end."""
    streaming, batch = tmp_path / "streaming", tmp_path / "batch"
    run_local(through(inputs, streaming), parallelism=2, storage=str(tmp_path / "s"))
    result = run_batch(through(inputs, batch), parallelism=2, spark=cluster, storage=str(tmp_path / "b"))
    for name in ("all", "some"):
        assert rows_in(batch / name) == rows_in(streaming / name)
        assert result.rows[OperatorId(name)] == len(rows_in(batch / name)) > 0
    assert last_in(batch / "sums", ["key"]) == last_in(streaming / "sums", ["key"])


def test_every_type_that_spark_lacks_comes_back_as_it_was(cluster: SparkSession, tmp_path: Path) -> None:
    """S0-10: columns travel in types that Spark has; names that Spark would confuse are told apart."""
    (tmp_path / "in").mkdir()
    pq.write_table(every_type(), tmp_path / "in" / "rows.parquet")
    run_local(through_a_shuffle(tmp_path / "in", tmp_path / "s"), parallelism=2, storage=str(tmp_path / "state"))
    run_batch(
        through_a_shuffle(tmp_path / "in", tmp_path / "b"), parallelism=2, spark=cluster, storage=str(tmp_path / "end")
    )
    assert len(rows_in(tmp_path / "b")) == 3
    assert rows_in(tmp_path / "b") == rows_in(tmp_path / "s")
    assert schema_in(tmp_path / "b").equals(schema_in(tmp_path / "s"))
